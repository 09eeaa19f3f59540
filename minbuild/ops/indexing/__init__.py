"""Reading and writing elements by index.

Each file declares operators; its kernels are in `kernels/ops/indexing/`. No file of another family needs an edit.
"""
