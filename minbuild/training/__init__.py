"""A built trainer in Python: `library` is its C API on numpy arrays, `api` looks like ONNX Runtime's."""
