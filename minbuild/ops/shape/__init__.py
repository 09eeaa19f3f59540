"""Operators on shapes and constants, most of them resolved at build time.

Each file declares operators; its kernels are in `kernels/ops/shape/`. No file of another family needs an edit.
"""
