"""Readers: files of the user become TrainingArtifacts.

`artifacts` reads a folder; `onnx/` and `ort_format/` are the two model formats. Besides `training/onnx_backend`,
nothing else imports `onnx`.
Bytes here are hostile: every fault of a file raises BadInput with the file, the place and the cure.
"""
