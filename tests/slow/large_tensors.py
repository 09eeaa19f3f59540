"""Trains a step with temporaries of more than 2 GiB each, beside numpy.

    python tests/slow/large_tensors.py [BATCH]

Takes about 5 GB of memory at the default batch of 17,000. Prints the size of the arena, the loss, and the largest
differences of the gradients as part of their largest elements."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from authored import source  # noqa: E402
from trainers import library_of  # noqa: E402

from minbuild.authoring import Recipe, make_artifacts, write_artifacts  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.planning.plan_encoding import is_wide  # noqa: E402
from minbuild.training.library import TRAIN, Session, arena_size  # noqa: E402

FEATURES, WIDE, PIECE = 8, 32_768, 500  # rows of a piece that numpy computes at a time
NET = f"""net (float[batch, {FEATURES}] x) => (float[batch, 1] y) {{
    p = MatMul (x, w) h = Tanh (p) y = MatMul (h, v) }}"""
RANDOM = np.random.default_rng(8)
W, V = ((RANDOM.standard_normal(s) * 0.1).astype(np.float32) for s in ((FEATURES, WIDE), (WIDE, 1)))


def expected(x: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss and the gradients of both weights."""
    loss, dw, dv = 0.0, np.zeros(W.shape), np.zeros(V.shape)
    for i in range(0, len(x), PIECE):
        rows = x[i : i + PIECE]
        h = np.tanh(rows @ W)
        difference = (h @ V - target[i : i + PIECE]).astype(np.float64)
        loss += float((difference**2).sum()) / len(x)
        dy = (2 * difference / len(x)).astype(np.float32)
        dv += h.T @ dy
        dw += rows.T @ ((1 - h * h) * (dy @ V.T))
    return loss, dw, dv


def main() -> None:
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 17_000
    x = RANDOM.standard_normal((batch, FEATURES)).astype(np.float32)
    target = RANDOM.standard_normal((batch, 1)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = make_artifacts(source(NET, {"w": W, "v": V}), Recipe(loss="mse", optimizer="sgd"))
        write_artifacts(made, folder)
        model = compile_model(folder, {}, {"batch": batch})
        library = library_of(contents_of([model]), model.registry, folder)
        size = arena_size(library, model.plan_bytes, [batch])
        tensor = batch * WIDE * 4
        sys.stdout.write(f"a tensor has {tensor:,} bytes, a session takes {size:,}\n")
        assert is_wide(model.plan_bytes) and tensor > 2**31
        session = Session(library, model.plan_bytes, model.checkpoint, [batch])
        loss = float(np.ravel(session.run(TRAIN, [x, target])[0])[0])
        wanted, *gradients = expected(x, target)
        worst = [abs(loss / wanted - 1)]
        for parameter, gradient in zip(("w", "v"), gradients, strict=True):
            error = np.abs(session.gradient(parameter) - gradient).max()
            worst.append(float(error / np.abs(gradient).max()))
        sys.stdout.write(
            f"loss {loss:.6g}, {worst[0]:.1e} off; gradients {worst[1]:.1e} and {worst[2]:.1e} off\n"
        )
        # Sums of 17,000 rows in float, whose roundings have random signs: about the root of their number.
        assert max(worst) < 2.0**-23 * 4 * batch**0.5, worst


if __name__ == "__main__":
    main()
