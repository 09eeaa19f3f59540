"""Losses of torch.nn by the names that they have here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minbuild.authoring.losses import LOSSES, LossOptions, find_loss
from minbuild.errors import BadInput

_IGNORED = -100  # torch's default ignore_index, a label that data without padding does not have


def loss_of(loss: Any) -> tuple[str, LossOptions]:
    """The name and the options of a loss: of a name, an ONNX file's path, "none", or a loss of torch.nn. Raises
    BadInput."""
    if isinstance(loss, str):
        if loss not in ("", "none") and not loss.endswith(".onnx"):
            find_loss(loss, LossOptions())
        return "" if loss == "none" else loss, LossOptions()
    name = type(loss).__name__
    if name not in _LOSSES:
        raise BadInput(
            f"loss {name}: not supported. Choose from {', '.join(_LOSSES)} of torch.nn, from the names "
            f"{', '.join(LOSSES)}, or compute the loss in the module and give loss='none'."
        )
    own, options = _LOSSES[name]
    try:
        return own, LossOptions(**options(loss))
    except _NotHere as refused:
        raise BadInput(f"loss {name}: {refused}") from None


class _NotHere(Exception):
    """An option that no loss here has."""


def _reduction(loss: Any) -> dict[str, Any]:
    return {"reduction": loss.reduction}


def _of_classes(loss: Any) -> dict[str, Any]:
    if getattr(loss, "label_smoothing", 0.0):
        raise _NotHere("label_smoothing is not supported. Leave it at 0.")
    ignored = None if loss.ignore_index == _IGNORED else loss.ignore_index
    return {**_reduction(loss), "class_weights": _array(loss.weight), "ignore_index": ignored}


def _of_logits(loss: Any) -> dict[str, Any]:
    return {**_reduction(loss), "weights": _array(loss.weight), "pos_weight": _array(loss.pos_weight)}


def _smooth(loss: Any) -> dict[str, Any]:
    if loss.beta != 1:
        raise _NotHere("beta is not 1. Use torch.nn.HuberLoss(delta=...), which differs by the factor delta.")
    return _reduction(loss)


def _divergence(loss: Any) -> dict[str, Any]:
    if loss.log_target or loss.reduction not in ("batchmean", "sum"):
        raise _NotHere("supported with reduction='batchmean' or 'sum', and targets that are probabilities.")
    return {"reduction": "mean" if loss.reduction == "batchmean" else "sum"}


def _array(tensor: Any) -> np.ndarray | None:
    return None if tensor is None else np.asarray(tensor.detach().cpu().numpy())


_LOSSES: Mapping[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "CrossEntropyLoss": ("cross-entropy", _of_classes),
    "NLLLoss": ("nll", _of_classes),
    "MSELoss": ("mse", _reduction),
    "L1Loss": ("l1", _reduction),
    "HuberLoss": ("huber", lambda loss: {**_reduction(loss), "delta": loss.delta}),
    "SmoothL1Loss": ("huber", _smooth),
    "BCEWithLogitsLoss": ("bce", _of_logits),
    "KLDivLoss": ("kl", _divergence),
}
