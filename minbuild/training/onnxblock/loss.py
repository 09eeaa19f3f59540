"""Losses as blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from minbuild.authoring.loss_graph import loss_of
from minbuild.authoring.losses import LossOptions
from minbuild.training.onnxblock.blocks import Block

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss"]


class _Loss(Block):
    """A loss of a prediction against a further input of the model. `reduction` is mean or sum."""

    kind: str
    target = "target"

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        super().__init__()
        given: dict[str, Any] = {
            n: v if v is None or np.isscalar(v) else np.asarray(v) for n, v in options.items()
        }
        self.options = LossOptions(reduction=reduction, **given)

    def build(self, loss_input_name: str, target_name: str | None = None) -> str:
        """The loss of value `loss_input_name` against `target_name`, a value or a new input."""
        target, named = target_name or self.target, target_name is not None
        return self.base.write(  # type: ignore[no-any-return]
            lambda c: loss_of(c, self.kind, self.options, loss_input_name, target, computed=named)
        )


class MSELoss(_Loss):
    """The mean squared error."""

    kind = "mse"


class L1Loss(_Loss):
    """The mean absolute error."""

    kind = "l1"


class HuberLoss(_Loss):
    """Squared near zero, absolute beyond `delta`."""

    kind = "huber"

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class CrossEntropyLoss(_Loss):
    """Softmax and cross-entropy. Scores are [N,C,...], labels [N,...] of class numbers.

    `weight` is one factor per class, [C]; `reduction` is "mean" or "sum"; labels equal to `ignore_index` count for
    nothing.
    """

    kind, target = "cross-entropy", "labels"

    def __init__(self, weight: Any = None, reduction: str = "mean", ignore_index: int | None = None) -> None:
        super().__init__(reduction, class_weights=weight, ignore_index=ignore_index)

    def build(self, scores_input_name: str, labels_name: str | None = None) -> str:
        return super().build(scores_input_name, labels_name)


class NLLLoss(CrossEntropyLoss):
    """The negative log-likelihood of class numbers, given log-probabilities."""

    kind = "nll"


class BCEWithLogitsLoss(_Loss):
    """The binary cross-entropy of logits, in a form that does not overflow.

    `weight` multiplies the loss of each element, `pos_weight` its positive part; both broadcast to the logits' shape.
    `reduction` is "mean" or "sum".
    """

    kind = "bce"

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction, weights=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """The Kullback-Leibler divergence of log-probabilities from probabilities, averaged over the batch."""

    kind = "kl"
