"""Ten rounds of federated averaging with the clients in C: `python server.py`, after the commands of the README."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from minbuild.federated import QuantizedUpdate
from minbuild.training.trainer import Trainer

ROUNDS, BLOCK = 10, 256

trainer = Trainer("dist")
held = np.load("held.npz")
clients = sorted(Path().glob("client?.bin"))


def right(parameters: np.ndarray) -> int:
    """The held-out digits that a model with these parameters names rightly."""
    w1, b1, w2, b2 = np.split(parameters, np.cumsum([32 * 64, 32, 10 * 32]))
    hidden = np.maximum(held["pixels"] @ w1.reshape(32, 64).T + b1, 0)
    return int(np.count_nonzero((hidden @ w2.reshape(10, 32).T + b2).argmax(1) == held["labels"]))


def update_of(samples: Path, parameters: np.ndarray) -> np.ndarray:
    """The update of one client, which sends scales and then int8 values."""
    command = ("./client", "dist", str(samples))
    sent = subprocess.run(command, input=parameters.tobytes(), capture_output=True, check=True).stdout
    blocks = -(-parameters.size // BLOCK)
    scales, values = np.frombuffer(sent[: 4 * blocks], np.float32), np.frombuffer(sent[4 * blocks :], np.int8)
    return QuantizedUpdate(values, scales, BLOCK).restored()


parameters = trainer.flat()
names = trainer.trained
assert [trainer.parameter(name).size for name in names] == [2048, 32, 320, 10], names
print(f"before: {right(parameters)} of {len(held['labels'])} digits")
for number in range(ROUNDS):
    parameters = parameters + np.mean([update_of(samples, parameters) for samples in clients], axis=0)
    print(f"round {number + 1}: {right(parameters)} of {len(held['labels'])} digits")
if right(parameters) < 0.85 * len(held["labels"]):
    raise SystemExit("the clients learned too little")
