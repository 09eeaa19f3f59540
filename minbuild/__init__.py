"""minbuild: from ONNX Runtime training artifacts to the smallest trainer that computes the same numbers."""

__version__ = "0.1.0"
