"""Reverse-mode automatic differentiation of ONNX graphs, and its check by finite differences.

`backward` walks the graph; the rules stand with the operators (`Op.gradient` in `minbuild/ops/`). To make an operator
differentiable, add its rule there; nothing here changes.
"""
