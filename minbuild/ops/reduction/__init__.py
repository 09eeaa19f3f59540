"""Reductions over axes.

Each file declares operators; its kernels are in `kernels/ops/reduction/`. No file of another family needs an edit.
"""
