"""Signal processing.

Each file declares operators; its kernels are in `kernels/ops/signal/`. No file of another family needs an edit.
"""
