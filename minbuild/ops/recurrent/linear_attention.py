"""LinearAttention and CausalConvWithState of ONNX Runtime's own domain: those that ONNX has since opset 27."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minbuild.ops.core.definition import Op, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results

_SINCE = 27
# Attributes that ONNX's operators do not have, with the value that changes nothing.
_ATTENTION = {"state_window": 0}
_CONVOLUTION = {
    "dilation": 1,
    "ndim": 1,
    "channels_last": 0,
    "state_window": 0,
    "state_length": 0,
    "state_update_capacity": 0,
    "input_channel_offset": 0,
    "input_channels": 0,
}


def _standard(
    name: str, more: Mapping[str, int], ignored: Sequence[str]
) -> Callable[[GraphBuilder], Results]:
    def body(b: GraphBuilder) -> Results:
        for key, default in more.items():
            if int(b.ctx.attribute(key, default)) != default:
                raise UnsupportedUse(f"its attribute {key} is not supported. Leave it out")
        attributes: dict[str, Any] = {
            n: a for n, a in b.ctx.attributes.items() if n not in more and n not in ignored
        }
        results = b.many(2, name, *(x if x else None for x in b.x), **attributes)
        b.nodes[-1] = replace(b.nodes[-1], version=_SINCE)
        return results

    return body


def _op(name: str, more: Mapping[str, int], ignored: Iterable[str] = ()) -> Op:
    return Op(
        name,
        domain=MICROSOFT,
        decompose=_standard(name, more, tuple(ignored)),
        decomposes_to=(name,),
        differentiable=frozenset({0, 1}),
    )


OPS = (
    _op("LinearAttention", _ATTENTION),
    _op("CausalConvWithState", _CONVOLUTION, ("state_channels_last",)),
)
