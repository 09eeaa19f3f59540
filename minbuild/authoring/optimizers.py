"""Optimizer models: one node over all trained parameters, with the inputs that ONNX Runtime's convention names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from minbuild.errors import BadInput
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.options.did_you_mean import did_you_mean

MICROSOFT, OWN = "com.microsoft", "minbuild"


@dataclass(frozen=True)
class OptimizerOptions:
    """The options of an optimizer; None leaves its own default. Not every optimizer takes everything."""

    betas: tuple[float, float] | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    alpha: float | None = None  # RMSprop: how much of the mean square stays
    correct_bias: bool | None = None  # AdamW: of the moments, which begin at zero
    decay_first: bool | None = None  # AdamW: as PyTorch has it; decay precedes, both moments are corrected
    max_norm: float | None = None  # clip the gradients' common norm first


@dataclass(frozen=True)
class OptimizerModel:
    """An optimizer: its operator, how many moments it keeps per parameter, and its defaults."""

    title: str
    op_type: str
    domain: str
    moments: int
    steps: bool  # whether it needs the step count
    defaults: OptimizerOptions


def _options(**values: float | bool | tuple[float, float]) -> OptimizerOptions:
    return OptimizerOptions(**values)  # type: ignore[arg-type]


OPTIMIZERS: Mapping[str, OptimizerModel] = {
    "adamw": OptimizerModel(
        "Adam, parameters decay by themselves", op_type="AdamWOptimizer", domain=MICROSOFT, moments=2, steps=True,
        defaults=_options(
            betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.0, correct_bias=True, decay_first=False
        ),
    ),
    "adam": OptimizerModel(
        "Adam, weight decay added to the gradient", op_type="AdamOptimizer", domain=OWN, moments=2, steps=True,
        defaults=_options(betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.0),
    ),
    "sgd": OptimizerModel(
        "gradient descent", op_type="SGDOptimizerV2", domain=MICROSOFT, moments=1, steps=False, defaults=_options(),
    ),
    "momentum": OptimizerModel(
        "gradient descent with momentum", op_type="MomentumOptimizer", domain=OWN, moments=1, steps=False,
        defaults=_options(momentum=0.9, nesterov=False, weight_decay=0.0),
    ),
    "adagrad": OptimizerModel(
        "Adagrad", op_type="AdagradOptimizer", domain=OWN, moments=1, steps=False,
        defaults=_options(epsilon=1e-10, weight_decay=0.0),
    ),
    "rmsprop": OptimizerModel(
        "RMSprop", op_type="RMSPropOptimizer", domain=OWN, moments=1, steps=False,
        defaults=_options(alpha=0.99, epsilon=1e-8, weight_decay=0.0),
    ),
}  # fmt: skip

_SEQUENCES = ("params", "gradients", "first_order_moments", "second_order_moments")


def optimizer_graph(name: str, options: OptimizerOptions) -> Graph:
    """The optimizer model `name`. Raises BadInput for one there is not, and for every option it does not take."""
    if problems := list(optimizer_problems(name, options)):
        raise BadInput("\n".join(problems))
    optimizer = OPTIMIZERS[name]
    sequences = _SEQUENCES[: 2 + optimizer.moments]
    nodes = []
    gradients = "gradients"
    if options.max_norm is not None:
        attributes = {"max_norm": float(options.max_norm)}
        nodes.append(
            Node(
                "InplaceClipGradNorm",
                MICROSOFT,
                1,
                name="clip",
                inputs=("gradients",),
                outputs=("clipped",),
                attributes=attributes,
            )
        )
        gradients = "clipped"
    scalars = {"learning_rate": ElementType.FLOAT} | ({"step": ElementType.INT64} if optimizer.steps else {})
    fed = sequences if optimizer.op_type != "SGDOptimizerV2" else sequences[:2]  # which keeps a moment unused
    inputs = (*scalars, *(gradients if n == "gradients" else n for n in fed))
    node = Node(
        optimizer.op_type,
        optimizer.domain,
        1,
        name="optimizer",
        inputs=inputs,
        outputs=("updated",),
        attributes=_attributes(name, options),
    )
    # ONNX Runtime feeds the step count whether or not anything reads it.
    types = {n: TensorType(e, (1,)) for n, e in {**scalars, "step": ElementType.INT64}.items()}
    return Graph(
        "optimizer_model.onnx",
        nodes=(*nodes, node),
        inputs=types,
        sequences=dict.fromkeys(sequences, ElementType.FLOAT),
        outputs=("updated",),
        initializers={},
    )


def optimizer_problems(name: str, options: OptimizerOptions) -> Iterator[str]:
    """A sentence for everything that cannot be."""
    if name not in OPTIMIZERS:
        cure = did_you_mean(name, OPTIMIZERS) or f" Choose from {', '.join(OPTIMIZERS)}, or none."
        yield f"--optimizer {name}: no such optimizer.{cure}"
    for option, given in vars(options).items():
        takers = [n for n, o in OPTIMIZERS.items() if getattr(o.defaults, option) is not None]
        if given is None:
            continue
        if name in OPTIMIZERS and name not in takers and option != "max_norm":
            yield f"{option} does nothing with the optimizer {name}; it is for {', '.join(takers)}."
        numbers = given if isinstance(given, tuple) else (given,)
        if option in _BELOW and not all(0 <= n < _BELOW[option] for n in numbers):
            limit = "of 0 or more" if _BELOW[option] == inf else f"from 0 to below {_BELOW[option]}"
            yield f"{option} {given} cannot be; it takes numbers {limit}."
    if options.max_norm is not None and not 0 < options.max_norm < inf:
        yield f"max_norm {options.max_norm} cannot be; the largest norm of gradients is more than 0."


_BELOW: Mapping[str, float] = {"betas": 1, "epsilon": inf, "weight_decay": inf, "momentum": inf, "alpha": 1}


def _attributes(name: str, options: OptimizerOptions) -> dict[str, float | int]:
    optimizer = OPTIMIZERS[name]
    chosen = {}
    for option, default in vars(optimizer.defaults).items():
        given = getattr(options, option)
        if default is not None:
            chosen[option] = default if given is None else given
    attributes: dict[str, float | int] = {}
    if "betas" in chosen:
        attributes["alpha"], attributes["beta"] = chosen.pop("betas")
    decays_first = bool(chosen.pop("decay_first", False))
    attributes |= {n: int(v) if isinstance(v, bool) else float(v) for n, v in chosen.items()}
    if optimizer.op_type == "AdamWOptimizer":
        attributes["adam_mode"] = 0 if decays_first else 1  # 1: the form that ONNX Runtime's tool writes
    return attributes
