"""Federated learning with a built trainer: what a client does between two rounds.

`client` trains from the server's parameters and returns an update; `updates` are differences as flat arrays, clipped,
noised and quantised; `privacy` is DP-SGD with gradients per sample, and its accountant; `flower` is the client and the
strategy for Flower, the only module that imports flwr.
"""

from __future__ import annotations

from minbuild.federated.client import Client, LocalTraining
from minbuild.federated.privacy import PrivateOptimizer, epsilon
from minbuild.federated.updates import QuantizedUpdate, clipped, noised, quantized

__all__ = [
    "Client",
    "LocalTraining",
    "PrivateOptimizer",
    "QuantizedUpdate",
    "clipped",
    "epsilon",
    "noised",
    "quantized",
]
