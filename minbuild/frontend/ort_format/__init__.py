"""Models in ONNX Runtime's own format (`.ort`): reading and writing.

The layout is ONNX Runtime's schema in `schemas/`, decoded by `ir/flatbuffers`. Callers get the same `ir.Graph` as
from ONNX files, so nothing outside depends on the format.
"""
