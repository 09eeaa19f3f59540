"""Arithmetic on elements, with broadcasting.

Each file declares operators; its kernels are in `kernels/ops/arithmetic/`. No file of another family needs an edit.
"""
