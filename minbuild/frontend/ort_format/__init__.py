"""Models in ONNX Runtime's own format (`.ort`): reading and writing."""
