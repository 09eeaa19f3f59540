"""Readers: files of the user become TrainingArtifacts.

`artifacts` reads a folder; `onnx/` and `ort_format/` are the two model formats, the only places that import `onnx`.
"""
