"""Loss functions and their gradients.

Each file declares operators; its kernels are in `kernels/ops/loss/`. No file of another family needs an edit.
"""
