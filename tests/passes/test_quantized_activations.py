"""Quantized activations take few bytes between forward and backward pass, and give the bits of those that are kept
whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import quantized_models
import trainers
from planned_models import compiled, peak
from procedures import call, procedure_of
from quantized_activation_nets import MODELS, RECIPE, attention
from quantized_nets import CLASSES

from minbuild.authoring import artifacts_of, read_source
from minbuild.ir import Checkpoint, ElementType, Graph, Node, Role, TensorType, TrainingArtifacts, Value
from minbuild.ops import registry
from minbuild.ops.quantization.fake_quant import DECODE, FAKE_QUANT, FAKE_QUANT_GRAD
from minbuild.passes import manager
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.quantized_activations import add_codes
from minbuild.planning.kernel_selection import contents_of

REGISTRY = registry()
FLOAT = ElementType.FLOAT
SHAPES = ((), (1,), (9,), (3, 8), (2, 13), (3, 2, 5), (2, 3, 3, 3), (0, 4))


WITHOUT = tuple(p for p in manager.PASSES if p.name not in ("pack_quantization_masks", "add_codes"))


@pytest.fixture(params=MODELS)
def models(request, tmp_path, monkeypatch):
    """A net as it is planned, and with masks of bytes and results kept whole."""
    make, recipe = MODELS[request.param]
    artifacts = artifacts_of(read_source(make(tmp_path)), recipe, REGISTRY)
    packed = compiled(artifacts, REGISTRY, batch=16)
    with monkeypatch.context() as patch:
        patch.setattr(manager, "PASSES", WITHOUT)
        return packed, compiled(artifacts, REGISTRY, batch=16)


def test_a_step_has_the_bits_of_activations_that_are_kept_whole(models, tmp_path):
    library = trainers.library_of(contents_of(models), REGISTRY, tmp_path)
    procedure = models[0].program.procedures[0]
    shape = (procedure.values[procedure.inputs[0]].type.shape or ())[1:]
    for batch in (1, 5, 16):
        data = quantized_models.batches((batch, *shape), CLASSES, 3)
        found = [quantized_models.trained(quantized_models.session(m, library, 16), data) for m in models]
        assert [n for n in found[0] if found[0][n] != found[1][n]] == []


def test_activations_take_less_memory(models):
    assert peak(models[0]) < peak(models[1])
    (train, *_) = optimize(models[0].program, REGISTRY).procedures
    kept = [c for c in train.calls if c.op == FAKE_QUANT and any(c.outputs[2:])]
    decoded = {c.inputs[0] for c in train.calls if c.op == DECODE}
    assert decoded == {c.outputs[2] for c in kept} != set(), "no codes but those that are read"
    masks = [train.values[c.inputs[1]].type for c in train.calls if c.op == FAKE_QUANT_GRAD]
    assert masks and all(m.element is ElementType.UINT8 for m in masks)


def test_what_is_kept_anyway_needs_no_codes(tmp_path):
    """The gradient of Softmax reads its result, of which the quantised one is made again."""
    artifacts = artifacts_of(read_source(attention(tmp_path, "int8", 100)), RECIPE, REGISTRY)
    (train, *_) = optimize(compiled(artifacts, REGISTRY, batch=16).program, REGISTRY).procedures
    made = [c.op for c in train.calls if c.op in (FAKE_QUANT, DECODE) and c.outputs[0].startswith("wq")]
    assert made == [FAKE_QUANT, FAKE_QUANT]


def straight_through(x: np.ndarray, dy: np.ndarray, returned: tuple[str, ...]) -> TrainingArtifacts:
    """x -> FakeQuant -> mask -> FakeQuantGrad(dy) -> dx"""
    nodes = (
        Node("FakeQuant", "com.microsoft", 1, "q", ("x", "s", "z"), ("y", "inside"), {"quant_max": 20}),
        Node("FakeQuantGrad", "com.microsoft", 1, "grad", ("dy", "inside"), ("dx",)),
    )
    inputs = {n: TensorType(trainers.element_of(a), a.shape) for n, a in (("x", x), ("dy", dy))}
    known = {"s": np.array(0.25, x.dtype), "z": np.array(9, x.dtype)}
    graph = Graph("t.onnx", nodes, inputs, {}, returned, known)
    return TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_masks_of_bits_and_of_bytes_pass_the_same(precision, tmp_path):
    library = trainers.library_of(trainers.everything_of({"fake_quant"}, REGISTRY), REGISTRY, tmp_path)
    random = np.random.default_rng(6)
    for shape in SHAPES:
        x, dy = (np.asarray(random.standard_normal(shape) * 4, precision) for _ in range(2))
        inside = (np.rint(x / precision(0.25)) + 9 >= 0) & (np.rint(x / precision(0.25)) + 9 <= 20)
        for returned, kind in ((("dx",), "uint8_t"), (("dx", "inside"), "bool")):
            plan = trainers.plan_of(straight_through(x, dy, returned), REGISTRY)
            assert {k.types[1] for k in plan.kernels} == {kind}
            found = trainers.session_of(library, plan, {}).run(0, [x, dy])
            np.testing.assert_array_equal(found[0], np.where(inside, dy, 0))
            if len(returned) > 1:
                np.testing.assert_array_equal(found[1], inside)


@pytest.mark.parametrize("zero", [3.0, 3.5])
def test_results_are_made_of_whole_numbers_alone(zero):
    """A zero point between them, as artifacts may have it, leaves no codes."""
    number, tensor_type = TensorType(FLOAT, ()), TensorType(FLOAT, (3, 4))
    before = procedure_of((call(FAKE_QUANT, "x,s,z", "y"),), {**dict.fromkeys("xy", tensor_type)})
    known = {n: Value(n, number, Role.CONSTANT, np.array(v, np.float32)) for n, v in (("s", 1), ("z", zero))}
    temporary = replace(before.values["x"], role=Role.TEMPORARY)
    before = replace(before, values={**before.values, **known, "x": temporary})
    (made,) = add_codes(before, REGISTRY).calls
    assert bool(made.outputs[2:]) is (zero == 3)
