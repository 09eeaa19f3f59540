"""Resizing and sampling of images.

Each file declares operators; its kernels are in `kernels/ops/image/`. No file of another family needs an edit.
"""
