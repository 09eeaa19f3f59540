"""Masks and tables of cosines and sines that would train are named where no metadata say what is a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from authored import source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.likely_constants import likely_constants, likely_repeated
from minbuild.ir import Graph
from minbuild.ops import registry

pytestmark = pytest.mark.unit
ANGLES = np.outer(np.arange(4), [1.0, 0.1]).astype(np.float32)
MASK = np.triu(np.full((4, 4), -3e38, np.float32), 1)
W = np.random.default_rng(0).uniform(-1, 1, (4, 2)).astype(np.float32)
TEXT = """g (float[n, 4, 2] x) => (float[n, 4, 2] y) {
    c = Mul(x, cos)  s = Mul(x, sin)  r = Add(c, s)  h = Mul(r, w)  t = Transpose<perm = [0, 2, 1]>(h)
    p = MatMul(h, t)  q = Add(p, mask)  a = Softmax<axis = -1>(q)  y = MatMul(a, h) }"""
ARRAYS = {"cos": np.cos(ANGLES), "sin": np.sin(ANGLES), "w": W, "mask": MASK}


def test_they_are_named_and_the_cure_works() -> None:
    made = artifacts_of(source(TEXT, ARRAYS), Recipe(loss="mse"), registry())
    assert any(note.startswith("cos, sin, mask: a mask, or cosines and sines") for note in made.notes)
    made = artifacts_of(source(TEXT, ARRAYS), Recipe(loss="mse", frozen=("cos", "sin", "mask")), registry())
    assert [p.name for p in made.checkpoint.parameters if p.trainable] == ["w"]
    assert not any("--frozen" in note for note in made.notes)


def test_what_a_user_chose_is_not_questioned() -> None:
    made = artifacts_of(source(TEXT, ARRAYS), Recipe(loss="mse", train=("*",)), registry())
    assert not any("--frozen" in note for note in made.notes)


@pytest.mark.parametrize(
    "array",
    [
        W,
        np.zeros((4, 2), np.float32),
        np.ones((4, 2), np.float32),
        np.full((4, 2), -1e5, np.float32),
        -W * 2e4,
    ],
)
def test_parameters_are_none(array: np.ndarray) -> None:
    arrays = {**ARRAYS, "w": array, "cos": np.ones((4, 2), np.float32), "sin": np.zeros((4, 2), np.float32)}
    assert likely_constants(source(TEXT, arrays).graph, ("cos", "sin", "w")) == ()


def test_a_parameter_that_was_written_for_each_sample_is_named() -> None:
    arrays = {**ARRAYS, "w": np.repeat(W[:1], 4, 0)}
    made = artifacts_of(source(TEXT, arrays), Recipe(loss="mse"), registry())
    assert any(note.startswith("w: the same numbers for each place of the first axis") for note in made.notes)


@pytest.mark.parametrize("array", [W, W[:1], np.ones((4, 2), np.float32), W[:, 0]])
def test_other_parameters_are_written_once(array: np.ndarray) -> None:
    assert likely_repeated(source(TEXT, {**ARRAYS, "w": array}).graph, ("w",)) == ()


def test_tables_are_found_among_many_weights_of_their_shape() -> None:
    """Each table stands in the file twice, as in two layers, and nothing else is close to it."""
    random = np.random.default_rng(1)
    angles = random.uniform(0, 7, (32, 16))
    tables = {
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "cos2": np.cos(2 * angles),
        "sin2": np.sin(2 * angles),
    }
    weights = {f"w{i}": random.uniform(-1, 1, (32, 16)) for i in range(100)}
    near = {"off": np.cos(angles) + np.where(np.arange(16) == 7, 1e-3, 0)}
    arrays = {name: array.astype(np.float32) for name, array in {**weights, **tables, **near}.items()}
    assert likely_constants(holding(arrays), tuple(arrays)) == tuple(tables)


def test_numbers_between_those_that_are_looked_at_first_count() -> None:
    mask, table, repeated = np.zeros((100, 64), np.float32), np.ones((100, 64), np.float32), np.ones((9, 64))
    mask[1, 1], repeated[:, 5] = -3e38, 2
    other, almost = mask.copy(), repeated.copy()
    other[1, 2], almost[8, 3] = 1, 3
    sine = np.zeros_like(table)
    table[1, 1], sine[1, 1] = 0.6, 0.8
    cosine = table.copy()
    cosine[1, 1] = 0.7
    arrays = {"mask": mask, "other": other, "cos": table, "sin": sine, "cosine": cosine}
    assert likely_constants(holding(arrays), tuple(arrays)) == ("mask", "cos", "sin")
    arrays = {"once": almost, "often": repeated}
    assert likely_repeated(holding(arrays), tuple(arrays)) == ("often",)


def holding(arrays: Mapping[str, np.ndarray]) -> Graph:
    """A graph with these initializers, which its nodes do not read."""
    return replace(source(TEXT, ARRAYS).graph, initializers=arrays)
