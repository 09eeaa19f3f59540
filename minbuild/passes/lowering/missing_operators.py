"""Operators that are not supported: what to do about each, where something better than to leave it out is known."""

from __future__ import annotations

from minbuild.ir import Node

_MICROSOFT = "com.microsoft"
_ANY = "Leave it out of the model, or define it with --ops-dir"
_OPTIMIZED = (
    "Take the model as it was exported, before an optimizer for ONNX Runtime fused nodes into this one, or define it "
    "with --ops-dir"
)
_ZIP_MAP = "Convert the model again with options={'zipmap': False}, which gives probabilities as a tensor"
_LAYOUTS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}
_LAYOUT = (
    "ONNX Runtime laid out images for one processor as it saved the model: take the model that was given to it, or "
    "save it again with graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED"
)
_PAIRS = "Quantise again with quant_format=QuantFormat.QDQ, which trains"
_FUSED = "Quantise the model as it was exported, before ONNX Runtime's optimizer for transformers fuses nodes into one"
_LSTM = (
    "Quantise again with op_types_to_quantize=['MatMul', 'Gather'], which leaves LSTMs in float: one that is quantised "
    "is taken where its weights are constants, layout is 0, and activations have no parameters of their own"
)
_SEQUENCE = (
    "A sequence of tensors is taken where each of its tensors is known before the trainer is built: put them together "
    "in one tensor (Concat), or carry one tensor through a loop, or give it a scan output"
)
_CURES = {
    "DynamicQuantizeLSTM": _LSTM,
    "DynamicQuantizeMatMul": "Take the model as the quantizer wrote it, not as ONNX Runtime optimized it",
    "GatherBlockQuantized": "Quantise again with op_types_to_quantize=('MatMul',), which leaves tables in float",
    "MatMulIntegerToFloat": "Take the model as the quantizer wrote it, not as ONNX Runtime optimized it",
    "QAttention": _FUSED,
    "QEmbedLayerNormalization": _FUSED,
}


def no_operator(node: Node) -> str:
    """The problem with a node whose operator is not known here, and its cure."""
    cure = (
        _SEQUENCE
        if not node.domain and "Sequence" in node.op_type and node.op_type != "ReverseSequence"
        else _ANY
    )
    if node.domain == _MICROSOFT:
        quantised = node.op_type.startswith("QLinear") or node.op_type == "QGemm"
        cure = _CURES.get(node.op_type, _PAIRS if quantised else _OPTIMIZED)
    if node.domain in _LAYOUTS:
        cure = _LAYOUT
    if node.op_type == "ZipMap":
        cure = _ZIP_MAP
    return f"no such operator here. {cure}"
