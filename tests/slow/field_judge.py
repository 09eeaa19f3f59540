"""How far a trainer is from PyTorch, and whether that is rounding. For field_models.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from field_table import Row

ZERO = 1e-6  # of the largest of all gradients: rounding noise of a gradient that is zero
LOSS, GRADIENT = 1e-5, 1e-4  # relative: what rounding to float32 costs a well-conditioned network
DOUBLE = 1e-6  # relative, in double: attributes such as epsilon stay float32 in ONNX
NOISES = 10  # times as far as PyTorch in float32, where that is farther than LOSS and GRADIENT

Same = Mapping[str, tuple[str, bool]]  # initializer -> parameter of PyTorch, and whether it is transposed
Arrays = Mapping[str, np.ndarray]


def judge(row: Row) -> None:
    """The result, of the row's distances. What is not a number never agrees."""
    if row.losses <= LOSS and row.gradients <= GRADIENT:
        row.result = "agrees"
    elif not (row.losses <= NOISES * row.loss_noise or row.losses <= LOSS):
        row.result = f"losses differ; PyTorch in float32 is {row.loss_noise:.1e} away"
    elif not (row.gradients <= NOISES * row.gradient_noise or row.gradients <= GRADIENT):
        row.result = f"gradients differ; PyTorch in float32 is {row.gradient_noise:.1e} away"
    elif row.double is None:
        row.result = "noise"
    else:
        agrees = row.double <= DOUBLE
        row.result = "agrees in double" if agrees else "differs in double"


def compare_losses(row: Row, losses: Sequence[float], exact: np.ndarray, noise: np.ndarray) -> None:
    scale = np.abs(exact).max()
    row.losses = float(np.abs(np.array(losses) - exact).max() / scale)
    row.loss_noise = float(noise / scale)


def compare_gradients(row: Row, found: Arrays, record: Arrays, same: Same) -> None:
    """Distance and noise of the parameter that is farthest away. Each is measured by its largest element."""
    away = dict(distances(found, record, same))
    sizes = {p: float(np.abs(record[f"gradient64/{p}"]).max()) for p in away}
    row.gradients = float(np.max([0.0, *away.values()]))  # NaN if one is
    row.gradient_noise = max((float(record[f"noise/{p}"]) / sizes[p] for p in away), default=0.0)


def distances(found: Arrays, record: Arrays, same: Same) -> list[tuple[str, float]]:
    """By parameter of PyTorch that has a gradient, how far the one found is."""
    largest = max(float(np.abs(a).max()) for n, a in record.items() if n.startswith("gradient64/"))
    answer = []
    for name, (other, turned) in same.items():
        wanted = record[f"gradient64/{other}"]
        size = float(np.abs(wanted).max())
        if size > ZERO * largest and name in found:
            gradient = found[name].T if turned else found[name]
            answer.append((other, float(np.abs(gradient - wanted).max()) / size))
    return answer


def matched(initializers: Arrays, record: Arrays) -> dict[str, tuple[str, bool]]:
    """By initializer, the parameter of PyTorch that it is: by name, or by its elements, as exporters rename some."""
    known = {n.removeprefix("gradient64/") for n in record if n.startswith("gradient64/")}
    trained = {n: record[f"value/{n}"] for n in sorted(known)}
    found = {n: (n, False) for n, a in initializers.items() if n in trained and trained[n].shape == a.shape}
    rest = {n: a for n, a in trained.items() if n not in found}
    for name, array in initializers.items():
        if name in found or array.dtype != np.float32 or array.ndim == 0:
            continue
        for other, value in rest.items():
            turned = value.ndim == 2 and np.array_equal(value.T, array)
            if turned or np.array_equal(value, array):
                found[name] = (other, turned)
                del rest[other]
                break
    return found


def lost(record: Arrays, same: Same) -> list[str]:
    """Parameters of PyTorch with a gradient that no initializer is."""
    found = {f"gradient64/{p}" for p, _ in same.values()}
    return sorted(n for n, a in record.items() if n.startswith("gradient64/") and n not in found and a.any())
