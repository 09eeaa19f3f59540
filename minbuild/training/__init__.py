"""A built trainer in Python: `library` is its C API on numpy arrays, `api` looks like ONNX Runtime's.

`artifacts` and `onnxblock/` have the names of `onnxruntime.training`; names and arguments there are a promise to users
and change only with a new version. No other folder imports this one except `verify`.
"""
