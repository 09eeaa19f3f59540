"""Pooling and its gradients.

Each file declares operators; its kernels are in `kernels/ops/pooling/`. No file of another family needs an edit.
"""
