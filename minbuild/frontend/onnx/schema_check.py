"""Nodes against ONNX's own schemas: numbers of inputs and outputs, required attributes, types of attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx

from minbuild.ir import Node

_KINDS = frozenset(onnx.AttributeProto.AttributeType.values())
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single

MICROSOFT = "com.microsoft"
_MANY = 1 << 30
# Least and largest number of inputs of operators that the onnx package does not know, by ONNX Runtime's schemas.
_MICROSOFT_INPUTS = {
    "AdamWOptimizer": (6, 6),
    "BatchNormalizationGrad": (5, 5),
    "BiasGelu": (2, 2),
    "BiasGeluGrad_dX": (3, 3),
    "BroadcastGradientArgs": (2, 2),
    "ConvGrad": (3, 3),
    "DivGrad": (3, 3),
    "DropoutGrad": (2, 4),
    "DynamicQuantizeMatMul": (3, 5),
    "FastGelu": (1, 2),
    "FastGeluGrad": (2, 2),
    "FusedMatMul": (2, 2),
    "GatherBlockQuantized": (3, 4),
    "GatherElementsGrad": (3, 3),
    "GatherGrad": (3, 3),
    "GatherNDGrad": (3, 3),
    "Gelu": (1, 1),
    "GeluGrad": (2, 2),
    "InPlaceAccumulator": (2, 3),
    "InPlaceAccumulatorV2": (2, 3),
    "LayerNormalizationGrad": (5, 5),
    "LogSoftmaxGrad_13": (2, 2),
    "MatMulIntegerToFloat": (4, 7),
    "MaxPoolGrad": (2, 2),
    "QGemm": (6, 9),
    "QLinearAdd": (7, 8),
    "QLinearAveragePool": (4, 5),
    "QLinearConcat": (5, _MANY),
    "QLinearConv": (8, 9),
    "QLinearGlobalAveragePool": (5, 5),
    "QLinearLeakyRelu": (4, 5),
    "QLinearMul": (7, 8),
    "QLinearReduceMean": (4, 5),
    "QLinearSigmoid": (4, 5),
    "QLinearSoftmax": (4, 5),
    "QLinearWhere": (9, 9),
    "ReduceAllL2": (1, _MANY),
    "ReduceSumTraining": (2, 2),
    "ReluGrad": (2, 2),
    "SGDOptimizerV2": (3, 3),
    "SigmoidGrad": (2, 2),
    "SimplifiedLayerNormalizationGrad": (4, 4),
    "SliceGrad": (4, 6),
    "SoftmaxCrossEntropyLossGrad": (3, 5),
    "SoftmaxCrossEntropyLossInternal": (2, 4),
    "SoftmaxCrossEntropyLossInternalGrad": (3, 6),
    "SoftmaxGrad_13": (2, 2),
    "SplitTraining": (2, 2),
    "TanhGrad": (2, 2),
}


class _Schema(NamedTuple):
    """ONNX's definition of an operator in one version."""

    attributes: Mapping[str, int]  # AttributeProto types, whose numbers the schema's own enumeration has
    required: tuple[str, ...]  # among them
    inputs: tuple[str, ...]  # names of those that may not be left out, "" for others
    min_input: int
    max_input: int
    max_output: int


def schema_violations(node: Node, kinds: Mapping[str, int] = MappingProxyType({})) -> Iterator[str]:
    """Disagreements of a node with ONNX's schema of its operator, each as the end of a sentence that begins with the
    node. `kinds` maps its attributes to their AttributeProto types. Nothing for operators that ONNX does not define."""
    if node.domain == MICROSOFT:
        yield from _wrong_count(node)
    schema = _schema_of(node.op_type, node.version, node.domain)
    if schema is None:
        return
    for name, kind in kinds.items():
        declared = schema.attributes.get(name, kind)
        if declared != kind:
            expected = onnx.AttributeProto.AttributeType.Name(declared).lower()
            given = onnx.AttributeProto.AttributeType.Name(kind).lower() if kind in _KINDS else str(kind)
            yield f"has attribute '{name}' of type {given}; the operator takes {expected}"
    count = _present(node.inputs)
    if len(node.inputs) > schema.max_input:  # whatever is absent among them
        count = len(node.inputs)
    if not schema.min_input <= count <= schema.max_input:
        most = f" to {schema.max_input}" if schema.max_input != schema.min_input else ""
        yield f"has {count} inputs; the operator takes {schema.min_input}{most}"
    made = _present(node.outputs)
    if made > schema.max_output:
        yield f"has {made} outputs; the operator has {schema.max_output}"
    if "" in node.inputs[:count]:
        for needed, name in zip(schema.inputs, node.inputs[:count], strict=False):
            if needed and not name:
                yield f"leaves out input '{needed}', which the operator needs"
    for attribute in schema.required:
        if attribute not in node.attributes:
            yield f"has no attribute '{attribute}', which the operator needs"
    if node.title == "Constant" and not node.attributes:
        yield "has no attribute with its value"


def _wrong_count(node: Node) -> Iterator[str]:
    """A message if an operator of ONNX Runtime's own has a number of inputs that it does not take."""
    least, most = _MICROSOFT_INPUTS.get(node.op_type, (0, _MANY))
    count = _present(node.inputs)
    if not least <= count <= most:
        limits = (
            f"{least} or more" if most == _MANY else f"{least}" + (f" to {most}" if most != least else "")
        )
        yield f"has {count} inputs; the operator takes {limits}"


def _present(names: Sequence[str]) -> int:
    """The number of names without absent ones at the end."""
    count = len(names)
    while count and not names[count - 1]:
        count -= 1
    return count


@lru_cache(maxsize=1 << 12)  # the package makes objects anew for all inputs and attributes
def _schema_of(op_type: str, version: int, domain: str) -> _Schema | None:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a version that no opset has
        return None
    return _Schema(
        {name: _number(declared) for name, declared in schema.attributes.items()},
        required=tuple(declared.name for declared in schema.attributes.values() if declared.required),
        inputs=tuple(formal.name if formal.option == _SINGLE else "" for formal in schema.inputs),
        min_input=schema.min_input,
        max_input=schema.max_input,
        max_output=schema.max_output,
    )


def _number(declared: Any) -> int:
    """The AttributeProto type of an attribute of a schema."""
    return int(declared.type.value)
