"""Operators that ONNX Runtime's optimiser puts together, as files converted to its own format contain them: each
is taken apart again into what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ops.convolution import conv as _conv
from minbuild.ops.core.definition import Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT, GraphBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.linear_algebra import gemm as _gemm

# What FusedGemm and FusedConv apply to their result, and the attributes of the operator that their parameters are.
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
_PREFIX = "activation"
_GEMM_PARAMETERS = ("activation_alpha", "activation_beta", "activation_gamma")


def _activate(b: GraphBuilder, x: Value, parameters: Sequence[float]) -> Value:
    name = b.ctx.attribute(_PREFIX, "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise UnsupportedUse(f"the activation {name!r} is not supported; has {', '.join(_ACTIVATIONS)}")
    if name == "Clip":
        return b.add(name, x, *(b.constant(p) for p in parameters[:2]))
    attributes: dict[str, Any] = dict(zip(_ACTIVATIONS[name], parameters, strict=False))
    return b.add(name, x, **attributes)


def _own(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in attributes.items() if not n.startswith(_PREFIX)}


def _gemm_parameters(attributes: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(attributes[n] for n in _GEMM_PARAMETERS if n in attributes)


def _conv_parameters(attributes: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(attributes.get("activation_params", ()))


def _gemm_body(b: GraphBuilder) -> Results:
    product = b.add("Gemm", *b.x, **_own(b.ctx.attributes))
    return _activate(b, product, _gemm_parameters(b.ctx.attributes))


def _conv_body(b: GraphBuilder) -> Results:
    """A fourth input is added before the activation."""
    result = b.add("Conv", *b.x[:3], **_own(b.ctx.attributes))
    if b.has(3):
        result = result + b.x[3]
    return _activate(b, result, _conv_parameters(b.ctx.attributes))


_MEANINGS: Mapping[str, Callable[..., np.ndarray]] = {
    "": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, alpha * x, x),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "Clip": np.clip,
}


def _gemm_reference(attributes: Mapping[str, Any], *x: np.ndarray) -> np.ndarray:
    activate = _MEANINGS[attributes.get(_PREFIX, "")]
    return activate(_gemm.gemm.reference(_own(attributes), *x), *_gemm_parameters(attributes))  # type: ignore[misc]


def _conv_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    added: np.ndarray | None = None,
) -> np.ndarray:
    result = _conv.conv.reference(_own(attributes), x, w, bias)  # type: ignore[misc]
    activate = _MEANINGS[attributes.get(_PREFIX, "")]
    return activate(result if added is None else result + added, *_conv_parameters(attributes))


def _gemm_cases(random: np.random.Generator) -> Iterable[TestCase]:
    a, w, c = (random.standard_normal(s) for s in ((3, 5), (4, 5), (4,)))
    for name, parameters in (("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("LeakyRelu", (0.25,))):
        attributes = {"transB": 1, "alpha": 0.5, _PREFIX: name}
        attributes |= dict(zip(_GEMM_PARAMETERS, parameters, strict=False))
        yield TestCase(name, (a, w, c), attributes, ulps=16)
        yield TestCase(f"{name}, no third operand", (a, w), attributes, ulps=16)


def _conv_cases(random: np.random.Generator) -> Iterable[TestCase]:
    x, w, bias = (random.standard_normal(s) for s in ((2, 3, 6, 5), (4, 3, 3, 3), (4,)))
    added = random.standard_normal((2, 4, 4, 3))
    for name, parameters in (("Relu", ()), ("Clip", (0.0, 6.0)), ("LeakyRelu", (0.25,))):
        attributes = {_PREFIX: name, "activation_params": parameters}
        yield TestCase(name, (x, w, bias), attributes, ulps=32)
        yield TestCase(f"{name}, with a summand", (x, w, bias, added), attributes, ulps=32)


fused_gemm = Op(
    "FusedGemm",
    domain=MICROSOFT,
    reference=_gemm_reference,
    decompose=_gemm_body,
    decomposes_to=("Gemm", *_ACTIVATIONS),
    cases=_gemm_cases,
)
fused_conv = Op(
    "FusedConv",
    domain=MICROSOFT,
    reference=_conv_reference,
    decompose=_conv_body,
    decomposes_to=("Add", "Conv", *_ACTIVATIONS),
    cases=_conv_cases,
)

OPS = (fused_gemm, fused_conv)
