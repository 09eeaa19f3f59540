"""Matrix products and contractions.

Each file declares operators; its kernels are in `kernels/ops/linear_algebra/`. No file of another family needs an edit.
"""
