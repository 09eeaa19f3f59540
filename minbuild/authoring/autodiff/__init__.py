"""Reverse-mode automatic differentiation of ONNX graphs, and its check by finite differences."""
