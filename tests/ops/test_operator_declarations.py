"""Declarations of operators: kernels, their parameters, decompositions, files."""

from __future__ import annotations

import numpy as np
import pytest

from minbuild.errors import Unsupported
from minbuild.ir import ElementType, TensorType
from minbuild.ops import registry
from minbuild.ops.core.definition import (
    InvalidDefinition,
    KernelFunction,
    OpContext,
    UnsupportedUse,
    float_bits,
)
from minbuild.ops.core.graph_builder import GraphBuilder

pytestmark = pytest.mark.unit

REGISTRY = registry()
KERNEL = KernelFunction("shrink", ("y:float=",), params=("lambd:float", "axis:int"))


@pytest.mark.parametrize("lambd", [0.5, np.float32(0.5), np.float64(0.5), np.float16(0.5)])
@pytest.mark.parametrize("axis", [3, np.int64(3), np.uint8(3), ElementType(3)])
def test_parameters_are_scalars_of_python_or_numpy(lambd, axis):
    assert KERNEL.call("y", params=(lambd, axis)).params == (float_bits(0.5), 3)


def test_a_float_may_be_given_as_a_whole_number_and_a_flag_as_an_int():
    assert KERNEL.call("y", params=(1, True)).params == (float_bits(1.0), 1)
    assert KERNEL.call("y", params=(np.int32(1), np.bool_(True))).params == (float_bits(1.0), 1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ((0.5, 1.0), "'axis' is declared int, given 1.0, float"),
        ((0.5, np.float32(1)), "'axis' is declared int, given"),
        (("0.5", 1), "'lambd' is declared float, given '0.5', str"),
        ((True, 1), "'lambd' is declared float, given True, bool"),
        ((None, 1), "'lambd' is declared float, given None"),
        ((0.5, 2**31), "'axis' = 2147483648 exceeds 32 bits"),
        ((0.5,), "declares 2 parameters, the call has 1"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_an_error(params, message):
    with pytest.raises(InvalidDefinition, match=message):
        KERNEL.call("y", params=params)


def test_parameters_are_declared_with_a_kind():
    with pytest.raises(InvalidDefinition, match="'axis' is neither 'name:int' nor 'name:float'"):
        KernelFunction("shrink", ("y:float=",), params=("axis",))


def test_an_imported_operator_belongs_to_the_file_that_declares_it(tmp_path):
    (tmp_path / "other.py").write_text(
        "from minbuild.ops.activation.softmax import softmax, softmax_kernel\n\nOPS = ()\n"
    )
    found = registry((tmp_path,))
    assert found.op_stems[":Softmax"] == "softmax" and found.stems["softmax"] == "softmax"


def test_every_kernel_is_declared_by_an_operator():
    """Or by a lowering that stands for calls of others."""
    called = {kernel.function for op in REGISTRY.ops.values() for kernel in op.kernels}
    called |= {kernel.function for equal in REGISTRY.equals for kernel in equal.kernels}
    assert called == set(REGISTRY.functions)


def test_operators_with_kernels_are_lowered_and_others_are_not():
    for op in REGISTRY.ops.values():
        assert bool(op.kernels) == (op.lower is not None), op.title


@pytest.mark.parametrize("op", [o for o in REGISTRY.ops.values() if o.decompose], ids=lambda op: op.title)
def test_an_operator_declares_what_it_decomposes_to(op):
    """Shapes, constants and views are no part of a declaration: they need no kernel."""
    for case in op.cases(np.random.default_rng(2024)) if op.cases else ():
        types = tuple(None if x is None else TensorType(_element(x), x.shape) for x in case.inputs)
        known = tuple(x if i in case.constant else None for i, x in enumerate(case.inputs))
        names = tuple("" if x is None else f"x{i}" for i, x in enumerate(case.inputs))
        outputs = tuple("" if i in case.absent else f"y{i}" for i in range(case.outputs))
        builder = GraphBuilder(
            OpContext(case.attributes, types, known, max(op.since), op=op.key), names, outputs, "node"
        )
        try:
            op.decompose(builder)
        except (Unsupported, UnsupportedUse):
            continue
        written = {(n.domain, n.op_type) for n in builder.nodes} - {(op.domain, op.name)}
        needed = {
            o.title for o in (REGISTRY.find(*key) for key in written) if o and (o.kernels or o.decompose)
        }
        assert needed <= set(op.decomposes_to), case.name


def _element(array: np.ndarray) -> ElementType:
    element = ElementType.of(array.dtype)
    assert element is not None
    return element


def test_what_a_result_may_overwrite_is_never_left_out():
    """Passes rely on it."""
    random, tried = np.random.default_rng(1), 0
    for op in (o for o in REGISTRY.ops.values() if o.in_place and o.cases):
        for case in op.cases(random):
            tried += 1
            assert not [i for _, i in op.in_place if i >= len(case.inputs) or case.inputs[i] is None], op.key
    assert tried > 100


@pytest.mark.parametrize("name, gates", [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_kernels_count_their_multiplications(name: str, gates: int) -> None:
    """Those of layers of any size too: times, threads and the price of --ram follow from them."""
    steps, batch, features, hidden = 5, 3, 7, 11
    known = {
        "x": (steps, batch, features),
        "w": (1, gates * hidden, features),
        "r": (1, gates * hidden, hidden),
    }
    forward = steps * batch * gates * hidden * (features + hidden)
    for suffix, passes in (("", 1), ("_packed", 1), ("_grad", 2), ("_grad_packed", 2)):
        kernel = registry().functions[name + suffix]
        assert kernel.work is not None
        shapes = [known.get(arg.partition(":")[0], ()) for arg in kernel.args]
        assert kernel.work((), shapes) == passes * forward
