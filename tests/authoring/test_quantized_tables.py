"""GatherBlockQuantized, an embedding in blocks of four or eight bits, as ONNX Runtime's quantizers write it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import quantized_models
from onnx import TensorProto, helper, numpy_helper
from quantizer_models import MICROSOFT, RANDOM, adapted, outputs, proto_of, source_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.recipe import LoraOptions
from minbuild.errors import Unsupported
from minbuild.ops import registry

ROWS, COLUMNS, BLOCK = 9, 40, 16
BLOCKS = -(-COLUMNS // BLOCK)
FORMS = {  # element type, bits, the zero point that is absent
    "int4": (TensorProto.INT4, 4, 0),
    "uint4": (TensorProto.UINT4, 4, 0),
    "uint8, 4 bits": (TensorProto.UINT8, 4, 8),
    "uint8, 8 bits": (TensorProto.UINT8, 8, 128),
}


def stored(name, kind, bits, numbers) -> onnx.TensorProto:
    """Numbers of ONNX's own types of four bits, or one or two in a byte of every row."""
    if kind != TensorProto.UINT8:
        return helper.make_tensor(name, kind, numbers.shape, numbers.ravel())
    packed = numbers.astype(np.uint8)
    if bits == 4:
        packed = np.pad(packed, ((0, 0), (0, packed.shape[1] % 2)))
        packed = packed[:, ::2] | packed[:, 1::2] << 4
    return numpy_helper.from_array(packed, name)


def model(form, has_zeros, columns=COLUMNS):
    """Rows of a table by the whole numbers in x; and the table in float64."""
    kind, bits, absent = FORMS[form]
    low, high = (-8, 8) if kind == TensorProto.INT4 else (0, 1 << bits)
    numbers = RANDOM.integers(low, high, (ROWS, columns))
    zeros = RANDOM.integers(low, high, (ROWS, BLOCKS)) if has_zeros else np.full((ROWS, BLOCKS), absent)
    scale = RANDOM.uniform(0.5, 1, (ROWS, BLOCKS)).astype(np.float32)
    flags = {"block_size": BLOCK, "quantize_axis": 1, "gather_axis": 0}
    flags |= {"bits": bits} if kind == TensorProto.UINT8 else {}
    nodes = [
        ("Abs", "x", "size", {}),
        ("Cast", "size", "ids", {"to": TensorProto.INT64}),
        (f"{MICROSOFT}:GatherBlockQuantized", "table ids scale" + " zeros" * has_zeros, "y", flags),
    ]
    proto = proto_of(nodes, {"scale": scale}, ((4,), (4, columns)))
    proto.graph.initializer.append(stored("table", kind, bits, numbers))
    if has_zeros:
        proto.graph.initializer.append(stored("zeros", kind, bits, zeros))
    spread = (a.repeat(BLOCK, 1)[:, :columns] for a in (zeros, scale.astype(np.float64)))
    return proto, (numbers - next(spread)) * next(spread)


@pytest.mark.parametrize("has_zeros", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_quantised_table(form, has_zeros):
    proto, table = model(form, has_zeros)
    artifacts = adapted(proto)
    assert [p.name for p in artifacts.checkpoint.parameters] == ["table.lora_A", "table.lora_B"]
    x = RANDOM.integers(0, ROWS, (6, 4))
    found = outputs(artifacts, x.astype(np.float32), (4, COLUMNS))
    np.testing.assert_allclose(found, table[x], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_table_stays_packed(form, tmp_path):
    proto, _ = model(form, True)
    onnx.save(proto, tmp_path / "model.onnx")
    recipe = Recipe(loss="mse", lora=LoraOptions(("table",), 2))
    pair = quantized_models.Pair.of(tmp_path / "model.onnx", recipe)
    numbers = ROWS * COLUMNS * FORMS[form][1] // 8
    assert len(pair.packed.plan.constants) < numbers + ROWS * BLOCKS * 5 + 200 < ROWS * COLUMNS * 4


def test_a_table_that_a_product_reads_too():
    """As where an embedding and the last layer share one."""
    columns = BLOCKS * BLOCK
    proto, table = model("uint8, 4 bits", False, columns)
    flags = {"K": columns, "N": ROWS, "bits": 4, "block_size": BLOCK}
    product = helper.make_node("MatMulNBits", ["y", "table", "scale"], ["z"], domain=MICROSOFT, **flags)
    proto.graph.node.append(product)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 4, ROWS]))
    recipe = Recipe(loss="mse", lora=LoraOptions(("*",), 2), outputs=("z",), optimizer="")
    artifacts = artifacts_of(source_of(proto), recipe, registry())
    assert len(artifacts.checkpoint.parameters) == 4
    x = RANDOM.integers(0, ROWS, (6, 4))
    found = outputs(artifacts, x.astype(np.float32), (4, ROWS))
    np.testing.assert_allclose(found, table[x] @ table.T, rtol=1e-5, atol=1e-5)


def test_a_table_that_is_computed_is_refused_with_a_cure():
    proto, _ = model("uint8, 8 bits", False)
    proto.graph.node.insert(0, helper.make_node("Identity", ["table"], ["again"]))
    proto.graph.node[3].input[0] = "again"
    with pytest.raises(Unsupported, match=r"GatherBlockQuantized.*op_types_to_quantize=\('MatMul',\)"):
        adapted(proto)
