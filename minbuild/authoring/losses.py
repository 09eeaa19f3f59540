"""Losses, as nodes put behind a model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from minbuild.errors import BadInput
from minbuild.ir import ElementType, TensorType
from minbuild.ir.dims import Dim
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Value
from minbuild.options.did_you_mean import did_you_mean

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class LossOptions:
    """The options of a loss. Not every loss takes everything."""

    reduction: str = "mean"
    class_weights: np.ndarray | None = None  # cross-entropy, NLL: [C]
    ignore_index: int | None = None  # cross-entropy, NLL
    pos_weight: np.ndarray | None = None  # BCE with logits: broadcasts to the prediction
    weights: np.ndarray | None = None  # BCE with logits: of its terms, broadcasts to the prediction
    delta: float = 1.0  # Huber


# Writes the loss of a prediction (input 0) against a target (input 1): the name of the scalar.
Builder = Callable[[GraphBuilder, LossOptions], Value]


@dataclass(frozen=True)
class Loss:
    """A loss: what its target looks like, and its nodes."""

    title: str
    build: Builder
    classes: bool = False  # the target holds class numbers
    takes: frozenset[str] = field(default_factory=frozenset)  # LossOptions beside the reduction

    def target(self, prediction: TensorType) -> TensorType:
        """Type of the target of a prediction: [N,C,...] -> [N,...] of int64 for classes, else the same."""
        if not self.classes:
            return prediction
        shape: Sequence[Dim] = prediction.shape or ()
        return TensorType(ElementType.INT64, (*shape[:1], *shape[2:]))


def _reduced(b: GraphBuilder, x: Value, options: LossOptions) -> Value:
    rank = b.ctx.rank(0)
    op_type = "ReduceMean" if options.reduction == "mean" else "ReduceSum"
    return b.reduce(op_type, x, tuple(range(rank)), keepdims=False)


def _squared(b: GraphBuilder, options: LossOptions) -> Value:
    difference = b.x[0] - b.x[1]
    return _reduced(b, difference * difference, options)


def _absolute(b: GraphBuilder, options: LossOptions) -> Value:
    return _reduced(b, (b.x[0] - b.x[1]).abs(), options)


def _huber(b: GraphBuilder, options: LossOptions) -> Value:
    """delta (|d| - delta/2) beyond delta, d^2 / 2 within, as torch.nn.HuberLoss: c (|d| - c/2), c = min(|d|, delta)."""
    size = (b.x[0] - b.x[1]).abs()
    clipped = b.add("Min", size, b.constant(options.delta))
    inner = size - clipped * 0.5
    return _reduced(b, clipped * inner, options)


def _cross_entropy(b: GraphBuilder, options: LossOptions) -> Value:
    attributes: dict[str, object] = {"reduction": options.reduction}
    if options.ignore_index is not None:
        attributes["ignore_index"] = options.ignore_index
    weights = () if options.class_weights is None else (b.constant(options.class_weights),)
    return b.many(2, "SoftmaxCrossEntropyLoss", *b.x[:2], *weights, **attributes)[0]  # type: ignore[arg-type]


def _negative_log_likelihood(b: GraphBuilder, options: LossOptions) -> Value:
    attributes: dict[str, object] = {"reduction": options.reduction}
    if options.ignore_index is not None:
        attributes["ignore_index"] = options.ignore_index
    weights = () if options.class_weights is None else (b.constant(options.class_weights),)
    return b.add("NegativeLogLikelihoodLoss", *b.x[:2], *weights, **attributes)  # type: ignore[arg-type]


def _binary_cross_entropy(b: GraphBuilder, options: LossOptions) -> Value:
    """Of logits x and targets t: (1 - t) x + w (log(1 + exp(-|x|)) + max(-x, 0)), w = 1 + (pos_weight - 1) t. No term
    can overflow."""
    x, t = b.x[:2]
    one = b.constant(1.0)
    bend = ((-x.abs()).exp() + one).log()
    bend = bend + (-x).relu()
    if options.pos_weight is not None:
        extra = b.constant(np.asarray(options.pos_weight) - 1)
        bend = bend * (t * extra + one)
    terms = (one - t) * x + bend
    if options.weights is not None:
        terms = terms * options.weights
    return _reduced(b, terms, options)


def _divergence(b: GraphBuilder, options: LossOptions) -> Value:
    """Kullback-Leibler: t * (log t - x) for log-probabilities x, 0 where t is 0; the mean is over the batch."""
    x, t = b.x[:2]
    tiny = b.constant(float(np.finfo(b.ctx.element(0).dtype).tiny))
    terms = t * (b.add("Max", t, tiny).log() - x)
    rank = b.ctx.rank(0)
    rows = terms.sum(tuple(range(1, rank)), keepdims=False)
    return b.reduce("ReduceMean" if options.reduction == "mean" else "ReduceSum", rows, (0,), keepdims=False)


_WEIGHTED = frozenset({"class_weights", "ignore_index"})
LOSSES: Mapping[str, Loss] = {
    "cross-entropy": Loss("softmax and cross-entropy of class numbers", _cross_entropy, True, _WEIGHTED),
    "mse": Loss("mean squared error", _squared),
    "l1": Loss("mean absolute error", _absolute),
    "huber": Loss("squared error near zero, absolute error beyond delta", _huber, takes=frozenset({"delta"})),
    "bce": Loss(
        "binary cross-entropy of logits", _binary_cross_entropy, takes=frozenset({"pos_weight", "weights"})
    ),
    "kl": Loss("Kullback-Leibler divergence of log-probabilities", _divergence),
    "nll": Loss("negative log-likelihood of class numbers", _negative_log_likelihood, True, _WEIGHTED),
}


def find_loss(name: str, options: LossOptions) -> Loss:
    """The loss of that name. Raises BadInput for one there is not, and for every option it does not take."""
    if problems := list(loss_problems(name, options)):
        raise BadInput("\n".join(problems))
    return LOSSES[name]


def loss_problems(name: str, options: LossOptions) -> Iterator[str]:
    """A sentence for everything that cannot be, whatever the model is."""
    if name not in LOSSES:
        cure = did_you_mean(name, LOSSES) or f" Choose from {', '.join(LOSSES)}, or none."
        yield f"--loss {name}: no such loss.{cure}"
    if options.reduction not in REDUCTIONS:
        yield f"reduction {options.reduction!r}: a loss must be one number; choose from mean, sum."
    takes = LOSSES[name].takes if name in LOSSES else frozenset(vars(options))
    for option in ("class_weights", "ignore_index", "pos_weight", "weights", "delta"):
        given, default = getattr(options, option), getattr(LossOptions(), option)
        same = given is default or (np.isscalar(given) and given == default)
        if option not in takes and not same:
            takers = ", ".join(n for n, other in LOSSES.items() if option in other.takes)
            yield f"{option} does nothing with the loss {name}; it is for {takers}."
        elif option in _WEIGHTS and given is not None:
            numbers = np.asarray(given)
            if not (np.isfinite(numbers) & (numbers >= 0)).all():
                yield f"{option}: weights are numbers of 0 or more, but there are others among them."
    if not 0 < options.delta < inf:
        yield f"delta {options.delta} cannot be; it takes numbers above 0."


_WEIGHTS = ("class_weights", "pos_weight", "weights")


def loss_mismatches(options: LossOptions, prediction: TensorType) -> Iterator[str]:
    """A sentence for each of the weights that do not fit a prediction, of [N,C,...] where it is of classes."""
    shape = prediction.shape or ()
    if options.class_weights is not None:
        found = np.shape(options.class_weights)
        classes = shape[1] if len(shape) > 1 else None
        if len(found) != 1 or (isinstance(classes, int) and found[0] != classes):
            yield f"class_weights: {int(np.prod(found))} weights for {classes} classes; give one for each."
    for option in ("pos_weight", "weights"):
        found = np.shape(getattr(options, option)) if getattr(options, option) is not None else ()
        if not _broadcasts(found, shape):
            expected = f"[{', '.join(map(str, shape))}]"
            yield f"{option}: an array of shape {list(found)} does not broadcast to the prediction, {expected}."


def _broadcasts(small: Sequence[int], shape: Sequence[Dim]) -> bool:
    """True if an array of shape `small` gives one of `shape`, whatever free sizes are."""
    if len(small) > len(shape):
        return False
    pairs = zip(reversed(small), reversed(shape), strict=False)
    return all(own in (1, size) for own, size in pairs)
