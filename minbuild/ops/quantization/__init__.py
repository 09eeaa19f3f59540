"""Quantized operators and type conversion.

Each file declares operators; its kernels are in `kernels/ops/quantization/`. No file of another family needs an edit.
"""
