"""Optimizer updates and gradient buffers.

Each file declares operators; its kernels are in `kernels/ops/optimizer/`. No file of another family needs an edit.
"""
