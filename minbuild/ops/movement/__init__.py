"""Operators that move elements and compute nothing.

Each file declares operators; its kernels are in `kernels/ops/movement/`. No file of another family needs an edit.
"""
