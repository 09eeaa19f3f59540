"""Elementwise operators where shapes are free, where they compute shapes, and where bits change their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, ElementType, Graph, Node, Plan, Shape, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry

REGISTRY = registry()
BATCH = symbol("batch")
STEMS = {"arithmetic", "power", "min_max", "modulo", "where", "compare", "cast", "copy", "expand"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    contents = trainers.everything_of(STEMS, REGISTRY)
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("operands"))


def plan_of(
    nodes: Sequence[Node],
    inputs: Mapping[str, tuple[ElementType, Shape]],
    constants: Mapping[str, np.ndarray] | None = None,
    output: str = "y",
) -> Plan:
    types = {name: TensorType(*kind) for name, kind in inputs.items()}
    graph = Graph("training_model.onnx", tuple(nodes), types, {}, (output,), dict(constants or {}))
    return trainers.plan_of(
        TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), REGISTRY
    )


@pytest.mark.parametrize(
    "name", ["Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Mean", "Sum", "Less"]
)
def test_a_free_dimension_broadcasts(name, library):
    op = REGISTRY.ops[f":{name}"]
    assert op.reference
    attributes = {"fmod": 1} if name == "Mod" else {}
    node = Node(name, "", max(op.since), name, ("a", "b"), ("y",), attributes)
    shapes: dict[str, Shape] = {"a": (BATCH, 1, 3), "b": (2, 1)}
    plan = plan_of([node], {n: (ElementType.FLOAT, s) for n, s in shapes.items()})
    session = trainers.session_of(library, plan, {})
    for batch in (1, 4, 7):
        random = np.random.default_rng(batch)
        a, b = (random.uniform(0.5, 2, s).astype(np.float32) for s in ((batch, 1, 3), (2, 1)))
        (found,) = session.run(0, [a, b])
        wanted = op.reference(attributes, a.astype(np.float64), b.astype(np.float64))
        assert not trainers.disagreement(found, np.asarray(wanted), 8)


def test_a_mask_over_a_free_dimension(library):
    """As attention applies one: [batch, 1, 4] chooses between [batch, 2, 4] and a number."""
    inputs = {
        "mask": (ElementType.BOOL, (BATCH, 1, 4)),
        "x": (ElementType.FLOAT, (BATCH, 2, 4)),
    }
    node = Node("Where", "", 16, "where", ("mask", "x", "low"), ("y",), {})
    plan = plan_of([node], inputs, {"low": np.array(-9.0, np.float32)})
    session = trainers.session_of(library, plan, {})
    for batch in (1, 5):
        random = np.random.default_rng(batch)
        mask, x = random.random((batch, 1, 4)) > 0.5, random.random((batch, 2, 4)).astype(np.float32)
        (found,) = session.run(0, [mask, x])
        np.testing.assert_array_equal(found, np.where(mask, x, np.float32(-9)))


def test_the_shape_that_an_exporter_computes_for_expand(library):
    """Expand to Where(shape == -1, 1, shape), which is known when the trainer is built."""
    nodes = [
        Node("Shape", "", 17, "shape", ("like",), ("shape",), {}),
        Node("Equal", "", 17, "equal", ("shape", "open"), ("mask",), {}),
        Node("Where", "", 17, "where", ("mask", "ones", "shape"), ("target",), {}),
        Node("Expand", "", 17, "expand", ("x", "target"), ("y",), {}),
    ]
    inputs = {"x": (ElementType.FLOAT, (1, 3)), "like": (ElementType.FLOAT, (BATCH, 3))}
    plan = plan_of(nodes, inputs, {"open": np.array([-1, -1]), "ones": np.array([1, 1])})
    x = np.array([[1, 2, 3]], np.float32)
    session = trainers.session_of(library, plan, {})
    for batch in (2, 5):
        (found,) = session.run(0, [x, np.zeros((batch, 3), np.float32)])
        np.testing.assert_array_equal(found, np.repeat(x, batch, 0))


def test_dimensions_of_which_the_size_is_open_are_compared_on_the_device(tmp_path):
    nodes = [
        Node("Shape", "", 17, "shape", ("x",), ("shape",), {}),
        Node("Equal", "", 17, "equal", ("shape", "three"), ("y",), {}),
    ]
    plan = plan_of(nodes, {"x": (ElementType.FLOAT, (BATCH,))}, {"three": np.array([3])})
    built = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    session = trainers.session_of(built, plan, {})
    for batch in (3, 5):
        (found,) = session.run(0, [np.zeros(batch, np.float32)])
        np.testing.assert_array_equal(found, [batch == 3])


@pytest.mark.parametrize("returned", [True, False], ids=["returned", "used"])
def test_bits_under_another_type(returned, library):
    nodes = [Node("BitCast", "", 26, "bits", ("x",), ("z",), {"to": int(ElementType.INT32)})]
    if not returned:
        nodes.append(Node("Add", "", 14, "add", ("z", "one"), ("y",), {}))
    inputs = {"x": (ElementType.FLOAT, (3,))}
    plan = plan_of(nodes, inputs, {"one": np.array(1, np.int32)}, "z" if returned else "y")
    x = np.array([0.0, -1.5, np.inf], np.float32)
    (found,) = trainers.session_of(library, plan, {}).run(0, [x])
    np.testing.assert_array_equal(found, x.view(np.int32) + (not returned))


def test_bits_of_another_size_are_refused():
    nodes = [Node("BitCast", "", 26, "bits", ("x",), ("y",), {"to": int(ElementType.INT64)})]
    with pytest.raises(Unsupported, match="float and int64 differ in size"):
        plan_of(nodes, {"x": (ElementType.FLOAT, (3,))})


def test_a_type_that_nothing_holds_is_refused():
    nodes = [Node("Cast", "", 19, "cast", ("x",), ("y",), {"to": 17})]
    with pytest.raises(Unsupported, match="element type 17"):
        plan_of(nodes, {"x": (ElementType.FLOAT, (3,))})


def test_real_numbers_beyond_all_integers(library):
    """C++ leaves such casts open; here they give the smallest integer, or its lower bytes, on every processor."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, 4e9], np.float32)
    for to, wanted in (
        (ElementType.INT32, [-(2**31)] * 4 + [int(4e9) - 2**32]),
        (ElementType.INT64, [-(2**63)] * 4 + [int(4e9)]),
        (ElementType.INT8, [0, 0, 0, 0, int(4e9) % 256]),
        (ElementType.UINT32, [2**31] * 4 + [int(4e9)]),
    ):
        nodes = [Node("Cast", "", 19, "cast", ("x",), ("y",), {"to": int(to)})]
        plan = plan_of(nodes, {"x": (ElementType.FLOAT, (5,))})
        (found,) = trainers.session_of(library, plan, {}).run(0, [x])
        np.testing.assert_array_equal(found, np.array(wanted, to.dtype))
