"""Activation functions and their gradients.

Each file declares operators; its kernels are in `kernels/ops/activation/`. No file of another family needs an edit.
"""
