"""Dequantization fusion: products, convolutions and gathers read weights in the 4, 8 or 16 bits that they are stored
in. A dequantized matrix exists only block by block, so neither flash nor memory holds it.

The bits of results are those of the dequantized matrix: kernels add in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from minbuild.ir import Call, Procedure, Role, Shape
from minbuild.ops import Registry
from minbuild.ops.core.definition import UnsupportedUse
from minbuild.ops.linear_algebra.contraction import layout_of
from minbuild.ops.linear_algebra.matmul_rewrites import ProductOp
from minbuild.ops.quantization.dequantize import DEQUANTIZE, Format, format_at
from minbuild.ops.quantization.dequantize_conv import DEQUANTIZE_CONV
from minbuild.ops.quantization.dequantize_gather import DEQUANTIZE_GATHER
from minbuild.ops.quantization.dequantize_product import DEQUANTIZE_PRODUCT
from minbuild.passes.analysis.effects import Effects, Writes
from minbuild.passes.analysis.instruction_selection import context_of

_LINEAR = frozenset({":Gemm", ":MatMul", "com.microsoft:FusedMatMul", "minbuild:Contraction"})


def fuse_dequantization(procedure: Procedure, registry: Registry) -> Procedure:
    """Calls that read dequantized weights read their codes, where a kernel does; dequantizations that nothing reads any
    longer stay, as dead code."""
    if not any(call.op == DEQUANTIZE for call in procedure.calls):
        return procedure
    work = _Fusion(procedure, registry)
    calls = tuple(new for i, call in enumerate(procedure.calls) for new in work.fused(i, call))
    return replace(procedure, calls=calls)


@dataclass
class _Fusion:
    """One procedure."""

    procedure: Procedure
    registry: Registry
    made_by: Mapping[str, int] = field(init=False)
    effects: Effects = field(init=False)
    writes: Writes = field(init=False)

    def __post_init__(self) -> None:
        calls = self.procedure.calls
        self.made_by = {c.outputs[0]: i for i, c in enumerate(calls) if c.op == DEQUANTIZE}
        self.effects = Effects(self.procedure, self.registry)
        self.writes = Writes(self.procedure, self.effects)

    def fused(self, index: int, call: Call) -> Iterator[Call]:
        """The calls in place of the one at `index`."""
        found: Call | None = None
        if call.op in _LINEAR:
            found = self.product(index, call)
        elif call.op == ":Conv":
            found = self.convolution(index, call, 1, propagation=0)
        elif call.op == ":Gather":
            found = self.gather(index, call)
        elif call.op == "com.microsoft:ConvGrad" and not any(
            call.outputs[1:2]
        ):  # quantized weights do not train
            yield from self.input_gradient(index, call)
            return
        yield found or call

    def input_gradient(self, index: int, call: Call) -> Iterator[Call]:
        if self.weights(call, 2, index) is None:
            yield call
            return
        split = self.registry.ops[call.op].split
        assert split is not None
        parts = split(call, context_of(call, self.procedure.values)) if any(call.outputs[1:]) else (call,)
        for part in parts:
            fused = self.convolution(index, part, 2, propagation=1) if part.op == call.op else None
            yield fused or part

    def shape(self, name: str) -> Shape:
        return self.procedure.values[name].type.shape or ()

    def weights(self, call: Call, i: int, index: int) -> Call | None:
        """The Dequantize whose result is input `i`, if its operands are the same when the call at `index` runs."""
        name = call.inputs[i]
        maker = self.made_by.get(self.effects.owner(name))
        if maker is None:
            return None
        made = self.procedure.calls[maker]
        if self.shape(name) != self.shape(made.outputs[0]):
            return None
        for source in filter(None, made.inputs):
            owner = self.effects.owner(source)
            if (
                self.procedure.values[owner].role is Role.TEMPORARY
                and self.procedure.values[owner].constant is None
            ):
                return None
            if self.procedure.values[owner].role.persists and self.writes.any_in(owner, range(maker, index)):
                return None
        return made

    def format(self, made: Call) -> Format:
        return format_at(context_of(made, self.procedure.values))

    def product(self, index: int, call: Call) -> Call | None:
        made = self.weights(call, 1, index)
        if made is None:
            return None
        stored = self.format(made)
        a, w = (self.shape(n) for n in call.inputs[:2])
        bias = call.inputs[2] if len(call.inputs) > 2 else ""
        after = call.op == ":Gemm"
        if w != (stored.rows, stored.columns) or min(w) < 2:
            return None
        op = self.registry.ops[call.op]
        assert isinstance(op, ProductOp)
        try:
            layout = layout_of(op.equation(call.attributes, (len(a), len(w))), a, w)
        except UnsupportedUse:
            return None
        order = tuple(_axes(word) for word in layout.orders)
        plain = len(layout.outer) == 2 and len(layout.inner) == 1 and not layout.exchanged
        if not plain or order[0] not in ((0, 1), (1,)) or order[1] not in ((0, 2), (2,), (2, 0)):
            return None
        columns = layout.outer[1]
        if bias and call.attributes.get("beta", 1.0) == 0:
            bias = ""
        if bias and (call.attributes.get("beta", 1.0) != 1 or self.shape(bias)[-1:] != (columns,)):
            return None
        if bias and any(d != 1 for d in self.shape(bias)[:-1]):
            return None
        return replace(
            call,
            op=DEQUANTIZE_PRODUCT,
            version=1,
            inputs=(call.inputs[0], *_operands(made), bias),
            attributes={
                **stored.attributes,
                "transA": int(order[1] == (2, 0)),
                "transW": int(order[2] == (1, 2)),
                "alpha": float(call.attributes.get("alpha", 1.0)),
                "bias_after": int(after),
            },
        )

    def convolution(self, index: int, call: Call, i: int, propagation: int) -> Call | None:
        made = self.weights(call, i, index)
        if made is None:
            return None
        stored, w = self.format(made), self.shape(call.inputs[i])
        if stored.rows != w[0]:
            return None
        bias = call.inputs[2] if propagation == 0 and len(call.inputs) > 2 else ""
        own = {f"quantized_{name}": value for name, value in stored.attributes.items()}
        attributes = {**call.attributes, **own, "propagation": propagation, "weights": w}
        inputs = (call.inputs[0], *_operands(made), bias)
        outputs = call.outputs[:1]
        return replace(
            call, op=DEQUANTIZE_CONV, version=1, inputs=inputs, outputs=outputs, attributes=attributes
        )

    def gather(self, index: int, call: Call) -> Call | None:
        made, shape = self.weights(call, 0, index), self.shape(call.inputs[0])
        if made is None or int(call.attributes.get("axis", 0)) % max(1, len(shape)):
            return None
        stored = self.format(made)
        if stored.rows != shape[0]:
            return None
        return replace(
            call,
            op=DEQUANTIZE_GATHER,
            version=1,
            inputs=(*_operands(made), call.inputs[1]),
            attributes={**stored.attributes, "shape": shape, "to": made.attributes["to"]},
        )


def _operands(made: Call) -> tuple[str, str, str, str]:
    names = (*made.inputs, "", "", "")
    return names[0], names[1], names[2], names[3]


def _axes(word: int) -> tuple[int, ...]:
    """The axes that a word of a Layout names, in their order in memory."""
    found: list[int] = []
    for i in range(8):
        axis = word >> 4 * i & 15
        if axis == 15:
            break
        found.insert(0, axis)
    return tuple(found)
