"""RNN, GRU and LSTM, and their gradients.

Each file declares operators; its kernels are in `kernels/ops/recurrent/`. No file of another family needs an edit.
"""
