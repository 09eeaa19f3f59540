"""Pieces that are put together in another order: one copy of each, with the same numbers, where nothing else needs
them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trainers

from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry

REGISTRY = registry()
KERNELS = {"concat", "gather_pieces", "strided_copy"}


def node(op: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: object) -> Node:
    return Node(op, domain, 1 if domain else 13, outputs[0], tuple(inputs), outputs, attributes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of(KERNELS, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("pieces"))


def steps_and_results(library, nodes, shape, x, outputs=("y",), element=ElementType.FLOAT):
    """The number of copies that a graph of one input takes, and what it computes."""
    numbers = ([2, 4, 2], [3, 5], [0], [2], [8], [1], [-2], [2**63 - 1], [-(2**63)], [-1])
    constants = {f"n{i}": np.array(value, np.int64) for i, value in enumerate(numbers)}
    inputs = {"x": TensorType(element, shape)}
    graph = Graph("t.onnx", tuple(nodes), inputs, {}, outputs, constants)
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    plan = trainers.plan_of(artifacts, REGISTRY)
    return len(plan.routines[0].steps), trainers.session_of(library, plan, {}).run(0, [x])


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


SPLIT = node("Split", ("x", "n0"), "a", "b", "c", axis=0)
ORDERED = node("Concat", ("a", "c", "b"), "y", axis=0)


def order(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:2], x[6:], x[2:6]])


def test_a_split_in_another_order_is_copied_once(library):
    x = values(8, 5)
    steps, (y,) = steps_and_results(library, [SPLIT, ORDERED], (8, symbol("n")), x)
    np.testing.assert_array_equal(y, order(x))
    assert steps == 3


def test_slices_in_another_order_are_copied_once(library):
    """As recurrent layers of PyTorch are exported; limits from the end, and far behind it."""
    x = values(8, 5)
    nodes = [
        node("Slice", ("x", "n2", "n3", "n2"), "a"),
        node("Slice", ("x", "n3", "n6", "n2", "n5"), "b"),
        node("Slice", ("x", "n6", "n7", "n2"), "c"),
        ORDERED,
    ]
    steps, (y,) = steps_and_results(library, nodes, (8, 5), x)
    np.testing.assert_array_equal(y, order(x))
    assert steps == 3


def test_pieces_of_pieces_are_copied_once(library):
    """A split of a part, and a concatenation that is part of another, along an axis in the middle."""
    x = values(3, 8, 2)
    nodes = [
        node("SplitTraining", ("x", "n0"), "a", "b", "c", domain="com.microsoft", axis=1),
        node("SplitTraining", ("b", "thirds"), "d", "e", domain="com.microsoft", axis=1),
        node("Concat", ("e", "a"), "f", axis=-2),
        node("ConcatTraining", ("c", "f", "d"), "y", domain="com.microsoft", axis=1),
    ]
    constant = node("Constant", (), "thirds", value=np.array([1, 3], np.int64))
    steps, (y,) = steps_and_results(library, [constant, *nodes], (3, 8, 2), x)
    np.testing.assert_array_equal(y, np.concatenate([x[:, 6:], x[:, 3:6], x[:, :2], x[:, 2:3]], 1))
    assert steps == 4


def test_pieces_that_something_else_needs_are_cut(library):
    x = values(8, 5)
    steps, (y, b) = steps_and_results(library, [SPLIT, ORDERED], (8, 5), x, ("y", "b"))
    np.testing.assert_array_equal(y, order(x))
    np.testing.assert_array_equal(b, x[2:6])
    assert steps == 6


@pytest.mark.parametrize("limits", [("n9", "n8", "n2", "n9"), ("n5", "n4", "n2", "n3"), ("n2", "n3", "n5")])
def test_other_slices_are_cut(library, limits):
    """Backwards, by more than one, and along another axis than that of the concatenation."""
    x = values(8, 8)
    nodes = [
        node("Slice", ("x", *limits), "a"),
        node("Concat", ("a", "a"), "y", axis=0),
        node("Slice", ("x", *limits), "b"),
        node("Concat", ("b", "x"), "z", axis=0 if limits[2] == "n2" else 1),
    ]
    taken = {"n9": x[::-1], "n5": x[1::2], "n2": x[:, :2]}[limits[0]]
    steps, (y, z) = steps_and_results(library, nodes, (8, 8), x, ("y", "z"))
    np.testing.assert_array_equal(y, np.concatenate([taken, taken]))
    joined_along = 0 if limits[2] == "n2" else 1
    np.testing.assert_array_equal(z, np.concatenate([taken, x], joined_along))
    assert steps == (6 if joined_along == 0 else 5)


def test_integers_are_cut(library):
    x = np.arange(8, dtype=np.int64)
    steps, (y,) = steps_and_results(library, [SPLIT, ORDERED], (8,), x, element=ElementType.INT64)
    np.testing.assert_array_equal(y, order(x))
    assert steps == 6
