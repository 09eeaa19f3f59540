"""The configuration of ONNX Runtime's own reduced build: read, written, made from artifacts, and checked."""
