"""Convolutions and their gradients.

Each file declares operators; its kernels are in `kernels/ops/convolution/`. No file of another family needs an edit.
"""
