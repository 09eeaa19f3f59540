"""LabelEncoder: numbers become other numbers by a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.definition import INT64, Op, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results

_KINDS = {"int64s": np.int64, "floats": np.float32}


def _table(attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Keys, and one value more: that of everything else."""
    keys, _ = _listed(attributes, "keys")
    values, kind = _listed(attributes, "values")
    if len(keys) != len(values) or not len(keys):
        raise UnsupportedUse(f"{len(keys)} keys and {len(values)} values; each key has one value")
    if np.isnan(keys.astype(np.float64)).any():
        raise UnsupportedUse("a key that is no number, which equals nothing")
    other: Any = attributes.get("default_tensor")
    if other is None and kind != "tensor":
        other = attributes.get(f"default_{kind.rstrip('s')}")
    if other is None:
        other = -0.0 if values.dtype.kind == "f" else -1
    return keys, np.append(values, np.asarray(other).astype(values.dtype))


def _listed(attributes: Mapping[str, Any], side: str) -> tuple[np.ndarray, str]:
    """The contents of `keys_floats` and its like, and the attribute's name."""
    if attributes.get(f"{side}_tensor") is not None:
        return np.asarray(attributes[f"{side}_tensor"]).reshape(-1), "tensor"
    for kind, dtype in _KINDS.items():
        if attributes.get(f"{side}_{kind}"):
            return np.asarray(attributes[f"{side}_{kind}"], dtype), kind
    raise UnsupportedUse(f"{side} that are strings or not there. Give {side} of numbers")


def _body(b: GraphBuilder) -> Results:
    """The number of the key that an element equals, from 1, looks up the value. Of equal keys the last counts."""
    keys, values = _table(b.ctx.attributes)
    element, rank = ElementType.of(values.dtype), b.ctx.rank()
    if keys.dtype != b.ctx.element().dtype or element is None:
        raise UnsupportedUse(f"keys of {keys.dtype} for elements of {b.ctx.element().label}")
    same = b.x[0].unsqueeze((rank,)).equal(b.constant(keys))
    numbers = same.cast(INT64) * b.integers(range(1, len(keys) + 1))
    found = numbers.max((rank,), keepdims=False)
    return b.add("Gather", b.constant(np.roll(values, 1), element), found, axis=0)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    keys, values = _table(attributes)
    result = np.full(x.shape, values[-1])
    for key, value in zip(keys, values, strict=False):
        result[x == key] = value
    return result


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape in ((7,), (2, 3)):
        labels = random.integers(0, 5, shape)
        table = {"keys_int64s": (0, 2, 4), "values_int64s": (10, -20, 2**40), "default_int64": 7}
        yield TestCase(f"{list(shape)} int64", (labels,), table, ulps=0)
        table = {"keys_int64s": (1, 3, 1), "values_floats": (0.5, -1.5, 2.0)}
        yield TestCase(f"{list(shape)} int64 to float", (labels,), table, ulps=0)
    tensors = {"keys_tensor": np.array([0, 3]), "values_tensor": np.array([5, 6], np.int32)}
    tensors["default_tensor"] = np.array([-4], np.int32)
    yield TestCase("tensors", (labels,), tensors, ulps=0)
    del tensors["default_tensor"]
    yield TestCase("tensors without default", (labels,), tensors, ulps=0)


label_encoder = Op(
    "LabelEncoder",
    domain="ai.onnx.ml",
    since=(2, 4),
    reference=_reference,
    decompose=_body,
    decomposes_to=("Cast", "Equal", "Gather", "Mul", "ReduceMax"),
    differentiable=frozenset(),
    cases=_cases,
)

OPS = (label_encoder,)
