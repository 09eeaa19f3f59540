"""The loops over the batch that are kept: those that dropping one after the other, and counting the memory anew each
time, leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from authored import source
from case_sets import folders
from places import ROOT

from minbuild.authoring import Recipe, artifacts_of
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import TrainingArtifacts
from minbuild.ops import Registry, registry
from minbuild.passes.analysis.batch_tiles import Tiles
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite import batch_tiling
from minbuild.passes.rewrite.batch_tiling import live_peak

pytestmark = pytest.mark.unit
OPERATORS = registry()
Choices = list[tuple[Tiles, list[range]]]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Choices:
    """The tiles of every procedure that is planned, and the loops that are kept of them."""
    found: Choices = []
    needed = batch_tiling._needed

    def noted(tiles: Tiles, operators: Registry) -> list[range]:
        kept = needed(tiles, operators)
        found.append((tiles, kept))
        return kept

    monkeypatch.setattr(batch_tiling, "_needed", noted)
    return found


def dropped_one_by_one(tiles: Tiles) -> list[range]:
    """The loops that are left when each is dropped without which no more is live at the peak."""
    kept: list[range] = []
    least = live_peak(tiles.looped(tiles.loops), OPERATORS)
    for index, loop in enumerate(tiles.loops):
        peak = live_peak(tiles.looped([*kept, *tiles.loops[index + 1 :]]), OPERATORS)
        if peak <= least:
            least = peak
        else:
            kept.append(loop)
    return kept


def planned(artifacts: TrainingArtifacts) -> None:
    optimize(lower(artifacts, OPERATORS, {}), OPERATORS)


@pytest.mark.parametrize("folder", [ROOT / "artifacts", *folders()], ids=lambda folder: folder.name)
def test_loops_of_artifact_sets(folder: Path, chosen: Choices) -> None:
    planned(load_artifacts(folder))
    assert chosen
    for tiles, kept in chosen:
        assert kept == dropped_one_by_one(tiles)


def test_loops_over_small_images_are_dropped(chosen: Choices) -> None:
    """Statistics of the batch divide the step into tiles over large images and over small ones."""
    text = """
    net (float[batch, 4, 32, 32] x) => (float[batch, 3] scores) {
        a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, k) b = Relu(a) c = MaxPool<kernel_shape = [2, 2],
        strides = [2, 2]>(b) d, m, v = BatchNormalization<training_mode = 1>(c, scale, bias, mean, variance)
        e = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(d, l) f = Relu(e) g = GlobalAveragePool(f)
        h = Flatten(g) scores = MatMul(h, w)
    }"""
    random = np.random.default_rng(4)
    weights = {
        "k": random.standard_normal((8, 4, 3, 3)).astype(np.float32),
        "l": random.standard_normal((8, 8, 3, 3)).astype(np.float32),
        **{name: np.ones(8, np.float32) for name in ("scale", "variance")},
        **{name: np.zeros(8, np.float32) for name in ("bias", "mean")},
        "w": random.standard_normal((8, 3)).astype(np.float32),
    }
    planned(artifacts_of(source(text, weights, 18), Recipe(loss="cross-entropy"), OPERATORS))
    assert all(kept == dropped_one_by_one(tiles) for tiles, kept in chosen)
    assert any(0 < len(kept) < len(tiles.loops) for tiles, kept in chosen)
