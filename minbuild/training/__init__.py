"""A built trainer in Python: `library` is the C API on numpy arrays, `api` has the shape of onnxruntime.training.api."""
