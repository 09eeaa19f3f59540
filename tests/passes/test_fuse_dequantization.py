"""Quantized weights are read in place, and give the bits of weights that are dequantized beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
import quantized_models
from onnx import TensorProto, helper
from quantized_models import REGISTRY
from quantized_nets import CLASSES, MODELS, packed, quantized, saved

from minbuild.analysis.measure import tensors_of
from minbuild.authoring import Recipe, read_source
from minbuild.authoring.recipe import LoraOptions
from minbuild.errors import BadInput, Unsupported
from minbuild.ir import Role
from minbuild.ops.quantization.dequantize_conv import DEQUANTIZE_CONV
from minbuild.passes.analysis.instruction_selection import context_of
from minbuild.passes.manager import optimize

# Those that need no memory for weights.
CONVOLUTIONS = ("convolutions", "packed convolution", "int16 convolutions", "packed int16 convolution")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Mapping[str, quantized_models.Pair]:
    folder = tmp_path_factory.mktemp("models")
    return {name: quantized_models.Pair.of(make(folder), recipe) for name, (make, recipe) in MODELS.items()}


@pytest.fixture(scope="module")
def library(pairs, tmp_path_factory):
    """One that has the kernels of all."""
    return quantized_models.library_of(pairs.values(), tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("name", MODELS)
def test_steps_with_quantized_weights_have_the_bits_of_dequantized_ones(name, pairs, library):
    pair = pairs[name]
    procedure = pair.packed.program.procedures[0]
    shape = (procedure.values[procedure.inputs[0]].type.shape or ())[1:]
    for batch in (1, 5, 19):
        data = quantized_models.batches((batch, *shape), CLASSES, 2)
        found = [
            quantized_models.trained(quantized_models.session(model, library, 32), data)
            for model in (pair.packed, pair.floats)
        ]
        assert [n for n in found[0] if found[0][n] != found[1][n]] == []


@pytest.mark.parametrize("name", ["int8", "pooled convolutions"])
def test_a_library_of_signed_weights_alone_computes_the_same_bits(name, pairs, tmp_path):
    """Such a library has no code for unsigned weights and zero points."""
    pair = pairs[name]
    alone = quantized_models.library_of([pair], tmp_path)
    assert not {f for f in pair.packed.plan.features if f.endswith(".offsets")}
    procedure = pair.packed.program.procedures[0]
    shape = (procedure.values[procedure.inputs[0]].type.shape or ())[1:]
    data = quantized_models.batches((19, *shape), CLASSES, 2)
    found = [
        quantized_models.trained(quantized_models.session(model, alone, 32), data)
        for model in (pair.packed, pair.floats)
    ]
    assert found[0] == found[1]


def test_packed_columns_of_quantized_weights_take_less_memory(pairs):
    """A panel at a time is dequantized: half of the room that a float weight of the same size has is enough."""
    pair = pairs["int8 packed products"]
    packed, floats = (max(arena.peak for arena in model.arenas) for model in (pair.packed, pair.floats))
    assert packed < floats


@pytest.mark.parametrize("name", [name for name in MODELS if name != "not fused"])
def test_no_float_copy_is_in_flash_or_memory(name, pairs):
    pair = pairs[name]
    procedures = pair.packed.program.procedures
    constants = {n: v.constant for p in procedures for n, v in p.values.items() if v.role is Role.CONSTANT}
    stored = sum(array.nbytes for array in constants.values() if array is not None and array.size > 16)
    framing = 600  # single numbers, and the alignment of constants
    assert len(pair.packed.plan.constants) <= stored * 1.05 + framing
    weights = max(
        prod(d for d in v.type.shape or ()) for p in procedures for n, v in p.values.items() if ".q" in n
    )
    assert len(pair.floats.plan.constants) > len(pair.packed.plan.constants) + weights
    peaks = [max(arena.peak for arena in model.arenas) for model in (pair.packed, pair.floats)]
    assert peaks[0] <= peaks[1] + 8192 * (name not in CONVOLUTIONS)  # one block of weights


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_dequantized_by_themselves_only_where_no_kernel_reads_them(name, pairs):
    used = {kernel.function for kernel in pairs[name].packed.plan.kernels}
    assert ("dequantize" in used) == (name == "not fused")
    assert ("dequantize_gather" in used) == ("embedding" in name)


@pytest.mark.parametrize(
    "name", ["convolutions", "pooled convolutions", "packed convolution", "int16 convolutions"]
)
def test_convolutions_with_quantized_weights_do_as_much_work(name, pairs):
    """By which passes decide what is made again: as many multiplications as with real weights."""
    found = []
    for model, op in ((pairs[name].packed, DEQUANTIZE_CONV), (pairs[name].floats, ":Conv")):
        (train, *_) = optimize(model.program, REGISTRY).procedures
        flops = REGISTRY.ops[op].flops
        found.append(
            {
                call.node: flops(context_of(call, train.values))
                for call in train.calls
                if call.op == op and call.attributes.get("propagation", 0) == 0
            }
        )
    assert found[0] == found[1] != {}


@pytest.mark.parametrize(
    "name, kind", [("int8", "int8"), ("int4", "int4"), ("MatMulNBits", "uint4"), ("uint16", "uint16")]
)
def test_the_report_lists_quantized_weights_by_type_and_packed_bytes(name, kind, pairs):
    pair = pairs[name]
    tensors = tensors_of(pair.packed)
    codes = [t for t in tensors if t.use == "constant" and t.type == kind and len(t.shape) == 2]
    assert len(codes) == 2
    for tensor in codes:
        rows, columns = tensor.shape
        columns = -(-columns // 32) * 32 if name == "MatMulNBits" else columns  # whole blocks
        assert tensor.bytes == (rows * columns * int(kind.lstrip("uint")) + 7) // 8
    constants = sum(t.bytes for t in tensors if t.use == "constant")
    assert sum(t.bytes for t in codes) < constants <= len(pair.packed.plan.constants)


@pytest.mark.parametrize("kind", ["int4 columns", "uint16 columns zeros"])
def test_4_and_16_bits_before_onnx_has_them(kind, tmp_path):
    """ONNX Runtime's quantizer writes its own DequantizeLinear for them; it makes the same trainer."""
    found, attributes = quantized("w", np.random.default_rng(8), (64, CLASSES), kind)
    plans = []
    for domain, opset in (("com.microsoft", 17), ("", 21)):
        inputs = ["w.q", "w.scale", "w.zero"]
        nodes = [
            helper.make_node("DequantizeLinear", inputs, ["w"], domain=domain, **attributes),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        recipe = Recipe(loss="cross-entropy", lora=LoraOptions(("*",), 2))
        plans.append(
            quantized_models.Pair.of(saved(tmp_path, nodes, found, (64,), opset), recipe).packed.plan
        )
    assert plans[0].kernels == plans[1].kernels
    assert plans[0].constants == plans[1].constants


def test_other_readers_of_four_bits_are_named(tmp_path):
    found, _ = quantized("w", np.random.default_rng(8), (10, CLASSES), "int4 rows")
    nodes = [
        helper.make_node("Cast", ["w.q"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    with pytest.raises(
        Unsupported, match="reads the four-bit numbers 'w.q': only DequantizeLinear reads them"
    ):
        read_source(saved(tmp_path, nodes, found, (10,)))


def test_scales_are_no_parameters(tmp_path):
    with pytest.raises(BadInput, match="quantised"):
        quantized_models.Pair.of(packed(tmp_path, "MatMulNBits", (64, CLASSES)), Recipe(loss="cross-entropy"))
