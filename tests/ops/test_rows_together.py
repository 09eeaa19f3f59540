"""Kernels that take several rows or vectors at once, for tensors of real size: the bits of one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase

KNOWN = registry()
TOGETHER = frozenset({"softmax.together", "layer_normalization.together", "gelu.long"})


def _with_extremes(x: np.ndarray) -> np.ndarray:
    """One row each of zeros and of huge numbers, and one infinity and one NaN in the last two."""
    x = x.copy()
    x[0] = 0
    x[len(x) // 2] *= 1e30
    x[-1, -1], x[-2, 0] = np.inf, np.nan
    return x


def _cases(rows: int, length: int) -> list[tuple[str, TestCase]]:
    random = np.random.default_rng(rows * 1000 + length)

    def numbers(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    y = np.exp(numbers(rows, length))
    y /= y.sum(1, keepdims=True)
    row, last = {"axis": -1}, numbers(2, length)
    cases = [
        (":Softmax", TestCase("softmax", (numbers(rows, length) * 3,), row, ulps=8)),
        ("com.microsoft:SoftmaxGrad_13", TestCase("softmax", (numbers(rows, length), y), row, ulps=16)),
        (":LayerNormalization", TestCase("layer", (numbers(rows, length), *last), row, outputs=3, ulps=32)),
        (":LayerNormalization", TestCase("no bias", (numbers(rows, length), last[0]), row, ulps=32)),
        (
            ":SimplifiedLayerNormalization",
            TestCase("no mean", (numbers(rows, length), last[0]), row, ulps=32),
        ),
    ]
    if rows > 1:
        extremes = _with_extremes(numbers(rows, length))
        cases += [
            (":Softmax", TestCase("extremes", (extremes,), row)),
            ("com.microsoft:SoftmaxGrad_13", TestCase("extremes", (extremes, y), row)),
            (":LayerNormalization", TestCase("extremes", (extremes, *last), row, outputs=3)),
        ]
    return cases


def _elements(count: int) -> list[tuple[str, TestCase]]:
    random = np.random.default_rng(count)
    x, dy = random.standard_normal(count) * 3, random.standard_normal(count)
    x[[0, 1, 2, 3, -1]] = 0, np.nan, 100, -100, -0.0
    gelu, grad = TestCase("y", (x,), ulps=4), TestCase("dx", (dy, x), ulps=6)
    names = ("Gelu", "FastGelu"), ("GeluGrad", "FastGeluGrad")
    return [
        (f"com.microsoft:{n}", case) for case, some in zip((gelu, grad), names, strict=True) for n in some
    ]


ROWS = [(r, n) for n in (128, 131, 196, 197) for r in (1, 3, 4, 5, 9)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["rows", "elements"])
def test_several_at_once_have_the_bits_of_one_by_one(kind, dtype, tmp_path):
    made = (
        [c for r, n in ROWS for c in _cases(r, n)]
        if kind == "rows"
        else [c for n in (1 << 15, (1 << 15) + 13) for c in _elements(n)]
    )
    ones = [trainers.one_node(KNOWN.ops[operator], case, dtype) for operator, case in made]
    plans = [trainers.plan_of(one.artifacts, KNOWN) for one in ones]
    contents = trainers.contents_of(plans)
    assert contents.features & TOGETHER, "no kernel takes several at once"
    together = trainers.library_of(contents, KNOWN, tmp_path)
    single = trainers.library_of(replace(contents, features=contents.features - TOGETHER), KNOWN, tmp_path)
    assert len(list(tmp_path.glob("*.so"))) == 2
    (tmp_path / "wide").mkdir()
    wide = trainers.library_of(replace(contents, avx512=True), KNOWN, tmp_path / "wide")
    for (operator, case), one, plan in zip(made, ones, plans, strict=True):
        slow = trainers.run(
            single, replace(plan, features=tuple(f for f in plan.features if f not in TOGETHER)), one
        )
        for library in (together, wide):
            fast = trainers.run(library, plan, one)
            for name, values in slow.items():
                assert fast[name].tobytes() == values.tobytes(), (operator, case.name, name)
            assert fast.keys() == slow.keys()
