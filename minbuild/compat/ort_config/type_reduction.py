"""Of which inputs and outputs ONNX Runtime's reduced build keeps element types, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minbuild.compat.ort_config.requirements import Types
from minbuild.ir import ElementType

_INPUT = (("inputs", 0),)
_OUTPUT = (("outputs", 0),)
_INPUTS = (("inputs", 0), ("inputs", 1))
_BOTH = (("inputs", 0), ("outputs", 0))

_BY_INPUT = (
    "Abs Add ArgMax ArgMin AveragePool BatchNormalization BitShift Ceil Clip Concat Conv CumSum DequantizeLinear Div "
    "Equal Exp Expand Floor Gemm Greater IsNaN Less Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mul Neg "
    "NonZero Pad QLinearConv QLinearMatMul Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
    "ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign Round Scatter "
    "ScatterElements ScatterND Shrink Sigmoid Sign Sin Softmax Split SplitToSequence Sqrt Sub Sum Tanh TopK Transpose "
    "Unique"
)
_BY_OUTPUT = (
    "ConstantOfShape DynamicQuantizeLinear Multinomial QuantizeLinear RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike"
)
_PLACES: Mapping[tuple[str, str], tuple[tuple[str, int], ...]] = {
    **{("ai.onnx", name): _INPUT for name in _BY_INPUT.split()},
    **{("ai.onnx", name): _OUTPUT for name in _BY_OUTPUT.split()},
    **{("ai.onnx", name): _INPUTS for name in ("Gather", "GatherElements", "Pow", "Slice")},
    ("ai.onnx", "Cast"): _BOTH,
    ("ai.onnx", "Where"): (("inputs", 1),),
    **{("com.microsoft", name): _INPUT for name in ("QLinearAdd", "QLinearConv", "QLinearMul")},
}
_NAMES = {ElementType.FLOAT16: "MLFloat16", ElementType.BFLOAT16: "BFloat16"}


def type_name(element: ElementType) -> str:
    """ONNX Runtime's configuration name of an element type."""
    return _NAMES.get(element, element.ctype)


def tracks(domain: str, name: str) -> bool:
    """True if types of this operator are kept at all."""
    return (domain, name) in _PLACES or (domain, name) == ("ai.onnx", "OneHot")


def tracked_types(
    domain: str, name: str, inputs: Sequence[ElementType | None], outputs: Sequence[ElementType | None]
) -> Types:
    """The types that a configuration says of one application; `inputs` and `outputs` are None where absent. `domain`
    and `name` are the operator's."""
    if (domain, name) == ("ai.onnx", "OneHot"):
        indices, depth, values = (type_name(e) for e in inputs[:3] if e is not None)
        return Types(triples=frozenset({(indices, values, depth)}))
    found: dict[tuple[str, int], frozenset[str]] = {}
    for kind, index in _PLACES.get((domain, name), ()):
        elements = inputs if kind == "inputs" else outputs
        element = elements[index] if index < len(elements) else None
        if element is not None:
            found[kind, index] = frozenset({type_name(element)})
    return Types(found)
