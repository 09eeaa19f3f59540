"""Optimizers of torch.optim by the names and options that they have here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minbuild.authoring.optimizers import OPTIMIZERS, OptimizerOptions
from minbuild.errors import BadInput

# Options of torch.optim that change numbers, and the values at which they do nothing.
_NEUTRAL = {"amsgrad": False, "maximize": False, "centered": False, "dampening": 0, "lr_decay": 0}


def optimizer_of(optimizer: Any) -> tuple[str, OptimizerOptions, float | None]:
    """The name, the options and the learning rate of an optimizer of torch.optim; of a name, no learning rate. Raises
    BadInput for one that is not supported, with the options that are not."""
    if isinstance(optimizer, str):
        return optimizer, OptimizerOptions(), None
    name = type(optimizer).__name__
    if name not in _OPTIMIZERS:
        raise BadInput(
            f"optimizer {name}: not supported. Choose from {', '.join(_OPTIMIZERS)} of torch.optim, or from the names "
            f"{', '.join(OPTIMIZERS)}."
        )
    groups = optimizer.param_groups
    own = {key: value for key, value in groups[0].items() if key != "params"}
    if any({k: v for k, v in group.items() if k != "params"} != own for group in groups):
        raise BadInput(
            f"optimizer {name}: groups of parameters with different options are not supported. Make one."
        )
    wrong = [key for key, value in _NEUTRAL.items() if own.get(key, value) != value]
    wrong += ["momentum"] if name == "RMSprop" and own["momentum"] else []
    wrong += ["initial_accumulator_value"] if own.get("initial_accumulator_value") else []
    if wrong:
        raise BadInput(f"optimizer {name}: {', '.join(wrong)} cannot be changed here. Leave the default.")
    made, options = _OPTIMIZERS[name](own)
    return made, options, float(own["lr"])


def _adam(name: str) -> Callable[[Mapping[str, Any]], tuple[str, OptimizerOptions]]:
    def of(own: Mapping[str, Any]) -> tuple[str, OptimizerOptions]:
        first, second = own["betas"]
        decoupled = name == "adamw" or own.get("decoupled_weight_decay", False)
        options = OptimizerOptions(
            betas=(float(first), float(second)),
            epsilon=own["eps"],
            weight_decay=own["weight_decay"],
            decay_first=True if decoupled else None,
        )
        return "adamw" if decoupled else name, options

    return of


def _sgd(own: Mapping[str, Any]) -> tuple[str, OptimizerOptions]:
    if not own["momentum"] and not own["weight_decay"]:
        return "sgd", OptimizerOptions()
    options = OptimizerOptions(
        momentum=own["momentum"], nesterov=own["nesterov"], weight_decay=own["weight_decay"]
    )
    return "momentum", options


def _adagrad(own: Mapping[str, Any]) -> tuple[str, OptimizerOptions]:
    return "adagrad", OptimizerOptions(epsilon=own["eps"], weight_decay=own["weight_decay"])


def _rmsprop(own: Mapping[str, Any]) -> tuple[str, OptimizerOptions]:
    options = OptimizerOptions(alpha=own["alpha"], epsilon=own["eps"], weight_decay=own["weight_decay"])
    return "rmsprop", options


_OPTIMIZERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, OptimizerOptions]]] = {
    "AdamW": _adam("adamw"),
    "Adam": _adam("adam"),
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
}
