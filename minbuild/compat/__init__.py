"""Interfaces of others: ONNX's backend, ONNX Runtime's build configuration and its C API, name by name."""
