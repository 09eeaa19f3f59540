"""Normalization layers and their gradients.

Each file declares operators; its kernels are in `kernels/ops/normalization/`. No file of another family needs an edit.
"""
