"""Runs the merged model in onnx's own interpreter: its loss must be that of the trainer with its adapters."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from texts import author, whole

symbols, following = whole(author()[1])
merged, base = (ReferenceEvaluator(onnx.load(name)) for name in ("merged.onnx", "model.onnx"))


def loss(model: ReferenceEvaluator) -> float:
    (scores,) = model.run(None, {"text": symbols})
    scores = scores - scores.max(-1, keepdims=True)
    wanted = np.take_along_axis(scores, following[:, None], -1)[:, 0]
    return float(np.mean(np.log(np.exp(scores).sum(-1)) - wanted))


print(f"model.onnx: {loss(base):.3f}, merged.onnx: {loss(merged):.3f}")
assert loss(merged) < loss(base)
