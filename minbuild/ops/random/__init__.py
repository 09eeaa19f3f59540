"""Random numbers and dropout.

Each file declares operators; its kernels are in `kernels/ops/random/`. No file of another family needs an edit.
"""
