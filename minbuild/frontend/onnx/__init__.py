"""ONNX models: reading into Graph, rewriting what no device needs (functions, sequences, control flow), and writing.

`reader` and `writer` are the entries. Protobuf messages do not leave this folder: callers get `ir.Graph` and numpy
arrays.
"""
