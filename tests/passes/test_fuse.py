"""Rewrites: where they apply, where they must not, and that they change no number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ir import (
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Plan,
    Procedure,
    Program,
    Role,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.analysis.aliases import root
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite.dead_code import drop_dead_code
from minbuild.passes.rewrite.fuse import fuse_patterns, fuse_shared
from minbuild.passes.rewrite.view_elimination import eliminate_views

REGISTRY = registry()
BATCH = symbol("batch")
CONSTANTS = {
    "low": np.array(0.0, np.float32),
    "high": np.array(6.0, np.float32),
    "one": np.array([1.0], np.float32),
    "two": np.array([2.0], np.float32),
    "four": np.array([4.0], np.float32),
}


def node(text: str, **attributes) -> Node:
    """`y = Op a b` in the default domain, or `y = domain:Op a b`."""
    left, right = text.split(" = ")
    operator, *inputs = right.split()
    domain, _, name = operator.rpartition(":")
    return Node(name, domain, 17, text, tuple(inputs), tuple(left.split()), attributes)


def graph_of(nodes: list[Node], outputs: tuple[str, ...]) -> Graph:
    """Inputs x and dy: [batch, 3]; small: [batch, 1]."""
    wide = TensorType(ElementType.FLOAT, (BATCH, 3))
    inputs = {"x": wide, "dy": wide, "small": TensorType(ElementType.FLOAT, (BATCH, 1))}
    return Graph("training_model.onnx", tuple(nodes), inputs, {}, outputs, CONSTANTS)


def procedure(nodes: list[Node], outputs: tuple[str, ...] = ("y",)) -> Procedure:
    """Lowered, without views and dead code."""
    graph = graph_of(nodes, outputs)
    lowered = lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), REGISTRY, {}).procedures[0]
    return drop_dead_code(eliminate_views(lowered, REGISTRY), REGISTRY)


def ops(of: Procedure) -> list[str]:
    return [call.op for call in of.calls]


def fused(nodes: list[Node], outputs: tuple[str, ...] = ("y",)) -> Procedure:
    return fuse_patterns(procedure(nodes, outputs), REGISTRY)


CLIP_GRADIENT = [
    node("above = GreaterOrEqual x low"),
    node("below = LessOrEqual x high"),
    node("inside = And above below"),
    node("mask = Cast inside", to=1),
    node("y = Mul dy mask"),
]


def test_gradient_of_clip_is_one_call():
    result = fused(CLIP_GRADIENT)
    assert ops(result) == ["minbuild:ClipGrad"]
    assert result.calls[0].inputs == ("dy", "x")
    assert result.calls[0].attributes == {"min": 0.0, "max": 6.0}
    assert result.calls[0].outputs == ("y",)


@pytest.mark.parametrize(
    ("comparison", "bounds"),
    [("GreaterOrEqual x low", {"min": 0.0}), ("LessOrEqual x high", {"max": 6.0})],
)
def test_gradient_of_clip_with_one_bound(comparison, bounds):
    nodes = [node(f"inside = {comparison}"), node("mask = Cast inside", to=1), node("y = Mul mask dy")]
    result = fused(nodes)
    assert ops(result) == ["minbuild:ClipGrad"]
    assert result.calls[0].attributes == bounds


def test_an_intermediate_result_that_is_needed_elsewhere_stays():
    assert "minbuild:ClipGrad" not in ops(fused(CLIP_GRADIENT, ("y", "mask")))
    more = [*CLIP_GRADIENT, node("z = Add mask x")]
    assert "minbuild:ClipGrad" not in ops(fused(more, ("y", "z")))


def test_both_bounds_must_be_of_the_same_value():
    nodes = [node("below = LessOrEqual dy high") if n.outputs == ("below",) else n for n in CLIP_GRADIENT]
    assert "minbuild:ClipGrad" not in ops(fused(nodes))


def test_bounds_must_be_constant():
    nodes = [node("above = GreaterOrEqual x small"), *CLIP_GRADIENT[1:]]
    assert "minbuild:ClipGrad" not in ops(fused(nodes))


def test_a_broadcast_gradient_is_left_alone():
    nodes = [*CLIP_GRADIENT[:-1], node("y = Mul small mask")]
    assert "minbuild:ClipGrad" not in ops(fused(nodes))


def test_a_view_in_between_prevents():
    nodes = [
        *CLIP_GRADIENT[:-1],
        node("flat = Flatten mask", axis=0),
        node("wide = Flatten dy", axis=0),
        node("y = Mul wide flat"),
    ]
    assert "minbuild:ClipGrad" not in ops(fused(nodes))


def test_scale_and_expand_are_one_call():
    nodes = [
        node("shape = Shape x"),
        node("scaled = com.microsoft:Scale small four", scale_down=1),
        node("y = Expand scaled shape"),
    ]
    result = fused(nodes)
    assert ops(result) == ["minbuild:ScaledExpand"]
    assert result.calls[0].inputs == ("small", "four", "shape")
    assert result.calls[0].attributes == {"scale_down": 1}


def test_sum_of_two_is_an_addition():
    assert ops(fused([node("y = Sum x dy")])) == [":Add"]
    assert ops(fused([node("y = Sum x dy small")])) == [":Sum"]


def test_first_power_is_another_name():
    nodes = [node("exponent = Sub two one"), node("power = Pow x exponent"), node("y = Mul power two")]
    result = fused(nodes)
    assert ops(result) == [":Mul"]
    assert root(result.alias, result.calls[0].inputs[0]) == "x"


def test_a_returned_input_is_copied():
    assert ops(fused([node("y = Cast x", to=1)])) == ["minbuild:Copy"]


def test_an_operand_changed_in_between_prevents():
    before = procedure(CLIP_GRADIENT)
    after = fuse_patterns(before, REGISTRY)
    assert ops(after) == ["minbuild:ClipGrad"]
    # The same graph with x in a state tensor that a call in between writes.
    state = procedure([*CLIP_GRADIENT[:-1], node("other = Relu dy"), node("y = Mul other mask")])
    values = {**state.values, "x": replace(state.values["x"], role=Role.BUFFER)}
    between = [replace(c, outputs=("x",)) if c.op == ":Relu" else c for c in state.calls]
    calls = tuple(replace(c, inputs=("dy", "mask")) if c.op == ":Mul" else c for c in between)
    changed = replace(state, values=values, calls=calls)
    assert "minbuild:ClipGrad" not in ops(fuse_patterns(changed, REGISTRY))


@pytest.fixture(scope="module")
def scaled_by_size(tmp_path_factory):
    """y = Expand(1 / size of x) * small + dy"""
    nodes = [
        node("shape = Shape x"),
        node("size = Size x"),
        node("scaled = com.microsoft:Scale one size", scale_down=1),
        node("spread = Expand scaled shape"),
        node("product = Mul spread small"),
        node("y = Add product dy"),
    ]
    artifacts = TrainingArtifacts(graph_of(nodes, ("y",)), None, None, Checkpoint((trainers.TRAINED,)), {})
    plan = trainers.plan_of(artifacts, REGISTRY)
    contents = trainers.contents_of([plan])
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("library")), plan


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_sizes_reach_the_kernels_when_they_are_known(scaled_by_size, batch):
    random = np.random.default_rng(batch)
    x, dy, small = (random.standard_normal((batch, n)).astype(np.float32) for n in (3, 3, 1))
    library, plan = scaled_by_size
    (y,) = trainers.session_of(library, plan, {}).run(0, [x, dy, small])
    np.testing.assert_allclose(y, small / x.size + dy, rtol=1e-6, atol=1e-7)


# ---------------------------------------- rewrites for programs that have their kernel anyway

PRODUCT = [node("s = Sigmoid x"), node("y = Mul s x")]
GATE = node("z = com.microsoft:QuickGelu dy", alpha=0.5)


def artifacts(nodes: list[Node], outputs: tuple[str, ...]) -> TrainingArtifacts:
    return TrainingArtifacts(graph_of(nodes, outputs), None, None, Checkpoint((trainers.TRAINED,)), {})


def shared(training: list[Node], evaluation: list[Node]) -> tuple[Procedure, ...]:
    """Those of a training step that returns z, and of an evaluation that returns y, fused."""
    one, other = (
        lower(artifacts(nodes, outputs), REGISTRY, {}).procedures[0]
        for nodes, outputs in ((training, ("z",)), (evaluation, ("y",)))
    )
    program = Program((one, other), (), 0, ())
    return fuse_shared(program, REGISTRY).procedures


def test_an_evaluation_takes_the_kernel_of_the_training_step() -> None:
    ops = [[call.op for call in p.calls] for p in shared([GATE], PRODUCT)]
    assert ops == [["com.microsoft:QuickGelu"]] * 2
    swapped = [PRODUCT[0], node("y = Mul x s")]
    (fused,) = shared([GATE], swapped)[1].calls
    assert fused.inputs == ("x",) and fused.attributes == {"alpha": 1.0}


def test_without_it_both_calls_stay() -> None:
    plain = shared([node("z = Relu dy")], PRODUCT)[1]
    assert [call.op for call in plain.calls] == [":Sigmoid", ":Mul"]
    other = [PRODUCT[0], node("y = Mul s dy")]  # a gate of something else
    assert [call.op for call in shared([GATE], other)[1].calls] == [":Sigmoid", ":Mul"]
    kept = [*PRODUCT, node("t = Relu s"), node("y2 = Add y t")]  # read a second time
    lowered = lower(artifacts([GATE, *kept], ("z", "y2")), REGISTRY, {})
    assert ":Sigmoid" in [call.op for call in fuse_shared(lowered, REGISTRY).procedures[0].calls]


def test_a_sum_with_a_negative_is_a_difference_where_another_call_is_one() -> None:
    added = [node("n = Neg dy"), node("y = Add n x")]
    made = shared([node("z = Sub x dy")], added)[1]
    assert [(call.op, call.inputs) for call in made.calls] == [(":Sub", ("x", "dy"))]
    alone = shared([node("z = Relu x")], added)[1]
    assert [call.op for call in alone.calls] == [":Neg", ":Add"]
    narrow = [node("n = Neg small"), node("y = Add n x")]  # which the kernel of the other may not broadcast
    assert [call.op for call in shared([node("z = Sub x dy")], narrow)[1].calls] == [":Neg", ":Add"]


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_one_call_has_the_bits_of_two(rows: int, tmp_path) -> None:
    plans: list[Plan] = [
        trainers.plan_of(artifacts(nodes, outputs), REGISTRY)
        for nodes, outputs in (([*PRODUCT, GATE], ("y", "z")), (PRODUCT, ("y",)))
    ]
    assert len(plans[0].routines[0].steps) == len(plans[1].routines[0].steps) == 2
    library = trainers.library_of(trainers.contents_of(plans), REGISTRY, tmp_path)
    random = np.random.default_rng(rows)
    x, dy, small = (random.standard_normal((rows, n)).astype(np.float32) * 4 for n in (3, 3, 1))
    x.ravel()[0] = -90  # where the sigmoid is next to nothing
    found = [trainers.session_of(library, plan, {}).run(0, [x, dy, small])[0] for plan in plans]
    assert found[0].tobytes() == found[1].tobytes() and len(np.unique(found[0])) == x.size
