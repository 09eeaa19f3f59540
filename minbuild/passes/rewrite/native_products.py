"""Products of halves by the processor's own arithmetic: a call of its own in place of each MatMul, Gemm or other
product of two tensors of float16 or of bfloat16.

Results are floats. They are rounded where the graph has halves, and read as they are by all that computes in float
(legalize_half.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minbuild.ir import Call, ElementType, Procedure, Program, TensorType, Value
from minbuild.ops import Registry
from minbuild.ops.core.definition import HALVES
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp

PRODUCT = "minbuild:HalfContraction"


def take_native_products(program: Program, registry: Registry) -> Program:
    """`program`, as lowered, with products of halves in native arithmetic; `registry` holds its operators."""
    return replace(program, procedures=tuple(_rewritten(p, registry) for p in program.procedures))


def _rewritten(procedure: Procedure, registry: Registry) -> Procedure:
    values = dict(procedure.values)
    calls = tuple(new for call in procedure.calls for new in _taken(call, values, registry))
    return replace(procedure, calls=calls, values=values)


def _taken(call: Call, values: dict[str, Value], registry: Registry) -> Iterator[Call]:
    """The call, or what takes its place; adds the values between."""
    op = registry.ops[call.op]
    third = call.inputs[2] if len(call.inputs) > 2 else ""
    beta = call.attributes.get("beta", 1.0) if third else 1.0
    if not isinstance(op, ProductOp) or call.op == PRODUCT or beta != 1.0:
        yield call
        return
    types = [values[name].type for name in (*call.inputs[:2], call.outputs[0])]
    if len({t.element for t in types}) != 1 or types[0].element not in HALVES:
        yield call
        return
    a, b, y = types
    assert a.shape is not None and b.shape is not None, "lowered programs have shapes"
    equation = op.equation(call.attributes, (len(a.shape), len(b.shape)))
    sizes = equation.extents((a.shape, b.shape))
    result = call.outputs[0]
    rounded, wide = f"{result} without bias" if third else result, f"{result} as a product"
    shape = tuple(sizes[c] for c in equation.y)
    values[wide] = Value(wide, TensorType(ElementType.FLOAT, shape))
    attributes = {"equation": str(equation), "alpha": float(call.attributes.get("alpha", 1.0))}
    yield Call(PRODUCT, 1, call.node, inputs=call.inputs[:2], outputs=(wide,), attributes=attributes)
    if third:
        values[rounded] = Value(rounded, TensorType(y.element, shape))
    to = {"to": int(y.element)}
    yield Call(":Cast", 13, call.node, inputs=(wide,), outputs=(rounded,), attributes=to)
    if third:
        yield Call(":Add", 14, call.node, inputs=(rounded, third), outputs=call.outputs)
