"""Comparisons, logic and selection.

Each file declares operators; its kernels are in `kernels/ops/comparison/`. No file of another family needs an edit.
"""
