"""Shared by RNN, GRU and LSTM: attributes, shapes, activations, and the reference's walk through time.

S time steps, N sequences, I inputs, D directions, H units, G gates per unit:
x [S,N,I], w [D,G*H,I], r [D,G*H,H], b [D,2*G*H], lengths [N], states [D,N,H], y [S,D,N,H], gates [S,D,N,G*H].
With attribute `layout` 1 sequences come first instead: x [N,S,I], states [N,D,H], y [N,S,D,H].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ir.dims import Dim, product
from minbuild.ops.core.definition import OpContext, UnsupportedUse, require_equal

DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass(frozen=True)
class Function:
    """An activation: its value, its slope from its value, defaults of the numbers it takes (None: takes none)."""

    value: Callable[[np.ndarray, float, float], np.ndarray]
    slope: Callable[[np.ndarray, float, float], np.ndarray]
    alpha: float | None = None
    beta: float | None = None


# In the order of `Activation::Kind` in kernels/lib/nn/activation.h. Defaults as those of the operators of that name.
FUNCTIONS: Mapping[str, Function] = {
    "sigmoid": Function(lambda x, a, b: 0.5 + 0.5 * np.tanh(0.5 * x), lambda y, a, b: y * (1 - y)),
    "tanh": Function(lambda x, a, b: np.tanh(x), lambda y, a, b: 1 - y * y),
    "relu": Function(lambda x, a, b: np.maximum(x, 0), lambda y, a, b: np.where(y > 0, 1.0, 0.0)),
    "affine": Function(lambda x, a, b: a * x + b, lambda y, a, b: np.full_like(y, a), 1.0, 0.0),
    "leakyrelu": Function(
        lambda x, a, b: np.where(x < 0, a * x, x), lambda y, a, b: np.where(y > 0, 1.0, a), 0.01
    ),
    "thresholdedrelu": Function(
        lambda x, a, b: np.where(x < a, 0, x), lambda y, a, b: np.where(y == 0, 0.0, 1.0), 1.0
    ),
    "scaledtanh": Function(lambda x, a, b: a * np.tanh(b * x), lambda y, a, b: b * (a - y * y / a), 1.0, 1.0),
    "hardsigmoid": Function(
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda y, a, b: np.where((y > 0) & (y < 1), a, 0.0),
        0.2,
        0.5,
    ),
    "elu": Function(
        lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
        lambda y, a, b: np.where(y > 0, 1.0, y + a),
        1.0,
    ),
    "softsign": Function(lambda x, a, b: x / (1 + np.abs(x)), lambda y, a, b: (1 - np.abs(y)) ** 2),
    "softplus": Function(lambda x, a, b: np.logaddexp(x, 0), lambda y, a, b: -np.expm1(-y)),
}
_ROUNDING = 1e-6  # of values that may come from a float kernel
_POSITIVE = ("leakyrelu", "scaledtanh", "elu")  # whose slope follows from the value only for positive alpha


@dataclass(frozen=True)
class Activation:
    """A function with its numbers, of arguments within `limit`."""

    name: str
    alpha: float
    beta: float
    limit: float = float("inf")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        limited = np.clip(x, -self.limit, self.limit)
        return np.asarray(FUNCTIONS[self.name].value(limited, self.alpha, self.beta))

    def slope(self, y: np.ndarray) -> np.ndarray:
        """The derivative where the value is `y`; zero where the argument was limited."""
        made = np.asarray(FUNCTIONS[self.name].slope(y, self.alpha, self.beta))
        if np.isinf(self.limit):
            return made
        low, high = sorted(self(np.array([-self.limit, self.limit])).tolist())
        inside = (y > low + _ROUNDING * abs(low)) & (y < high - _ROUNDING * abs(high))
        return np.where(inside, made, 0)

    @property
    def params(self) -> tuple[int, float, float]:
        return list(FUNCTIONS).index(self.name), self.alpha, self.beta


def directions_of(attributes: Mapping[str, Any]) -> int:
    return 2 if attributes.get("direction", "forward") == "bidirectional" else 1


def activations_of(
    attributes: Mapping[str, Any], defaults: Sequence[str]
) -> tuple[tuple[Activation, ...], ...]:
    """The activations of each direction. Numbers go to those that take some, in order. Raises Unknown for a name
    that ONNX does not list and for a wrong number of them."""
    count, directions = len(defaults), directions_of(attributes)
    names = [str(n).casefold() for n in attributes.get("activations", ())] or [*defaults] * directions
    if len(names) != count * directions or not all(n in FUNCTIONS for n in names):
        known = ", ".join(FUNCTIONS)
        raise UnsupportedUse(f"activations are {names}; give {count} for each direction, out of {known}")
    alphas = iter(attributes.get("activation_alpha", ()))
    betas = iter(attributes.get("activation_beta", ()))
    limit = _attribute(attributes.get("clip") or np.inf)
    found = []
    for name in names:
        function = FUNCTIONS[name]
        alpha = 0.0 if function.alpha is None else _attribute(next(alphas, function.alpha))
        beta = 0.0 if function.beta is None else _attribute(next(betas, function.beta))
        found.append(Activation(name, alpha, beta, limit))
    return tuple(tuple(found[d * count : (d + 1) * count]) for d in range(directions))


def _attribute(value: float) -> float:
    """Numbers of attributes are float32."""
    return float(np.float32(value))


def check_slopes(activations: Sequence[Sequence[Activation]]) -> None:
    """Raises Unknown for an activation whose slope does not follow from its value."""
    for activation in (a for of in activations for a in of):
        if activation.name in _POSITIVE and activation.alpha <= 0:
            text = f"activation {activation.name} with alpha {activation.alpha:g} cannot be trained; only positive"
            raise UnsupportedUse(text)


# ------------------------------------------------------------------------------------------------ of the kernels


def activation_params(count: int) -> tuple[str, ...]:
    """Parameters of kernels that have `count` activations for each direction."""
    kinds = (("function", "int"), ("alpha", "float"), ("beta", "float"))
    each = (f"{name}_{d}{i}:{kind}" for d in range(2) for i in range(count) for name, kind in kinds)
    return ("course:int", "limit:float", *each)


def params(ctx: OpContext, defaults: Sequence[str]) -> tuple[int | float, ...]:
    """The values of `activation_params`."""
    course = DIRECTIONS.index(str(ctx.attribute("direction", "forward")))
    activations = activations_of(ctx.attributes, defaults)
    flat = [param for of in activations for a in of for param in a.params]
    missing = 6 * len(defaults) - len(flat)
    return (course, activations[0][0].limit, *flat, *(0,) * missing)


def features(ctx: OpContext, defaults: Sequence[str]) -> tuple[str, ...]:
    """True if anything but the sigmoid and tanh, without limits, is asked for."""
    used = [a for of in activations_of(ctx.attributes, defaults) for a in of]
    seldom = any(a.name not in ("sigmoid", "tanh") or np.isfinite(a.limit) for a in used)
    return ("activations",) if seldom else ()


def multiplications(args: Sequence[str], passes: int) -> Callable[[Sequence[int], Sequence[Shape]], Dim]:
    """Counts the multiplications of a kernel with these `args`: inputs and states by their weights, which follow the
    argument x, `passes` times in every step."""
    x = args.index("x:T")

    def count(params: Sequence[int], shapes: Sequence[Shape]) -> Dim:
        steps, batch, _ = shapes[x]
        return passes * steps * batch * (product(shapes[x + 1]) + product(shapes[x + 2]))

    return count


FEATURES = {"activations": "activations other than the sigmoid and tanh, and limits to what goes into them"}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer whose time comes first."""

    steps: Dim
    batch: Dim
    features: Dim
    directions: int
    hidden: Dim
    gates: int

    @classmethod
    def of(cls, ctx: OpContext, gates: int) -> Sizes:
        """From x, w and r, inputs 0 to 2. Raises Unknown where they do not belong together."""
        x, w, r = (ctx.shape(i) for i in range(3))
        direction = ctx.attribute("direction", "forward")
        if direction not in DIRECTIONS:
            raise UnsupportedUse(f"direction is {direction}; it must be one of {', '.join(DIRECTIONS)}")
        directions = directions_of(ctx.attributes)
        fits = len(x) == len(w) == len(r) == 3 and isinstance(r[2], int)
        text = f"x {list(x)}, w {list(w)} and r {list(r)} do not belong together"
        if not fits or w[:2] != (directions, gates * r[2]) or r != (directions, gates * r[2], r[2]):
            raise UnsupportedUse(text)
        require_equal(x[2], w[2], text)
        if ctx.attribute("hidden_size", r[2]) != r[2]:
            raise UnsupportedUse(f"hidden_size is {ctx.attribute('hidden_size')}, but r is {list(r)}")
        return cls(x[0], batch=x[1], features=x[2], directions=directions, hidden=r[2], gates=gates)

    @property
    def state(self) -> Shape:
        return (self.directions, self.batch, self.hidden)

    @property
    def y(self) -> Shape:
        return (self.steps, *self.state)

    @property
    def saved(self) -> Shape:
        """Of the gates that training keeps."""
        return (*self.y[:-1], product((self.gates, self.hidden)))

    @property
    def row(self) -> Shape:
        """States of one direction."""
        return self.state[1:]

    @property
    def all_gates(self) -> Shape:
        """Gates of one direction."""
        return (self.steps, self.batch, self.gates, self.hidden)


def gradient_types(ctx: OpContext, gates: int, defaults: Sequence[str]) -> Sequence[TensorType]:
    """Types of the gradients of x, w, r, the bias and the first state. `ctx` is the operator's, `gates` the number of
    gates, `defaults` are the activations of one direction."""
    sizes = Sizes.of(ctx, gates)
    check_slopes(activations_of(ctx.attributes, defaults))
    bias = (sizes.directions, 2 * ctx.shape(1)[1])
    shapes = (*(ctx.shape(i) for i in range(3)), bias, sizes.state)
    return tuple(TensorType(ctx.element(), shape) for shape in shapes)


def scratch_bytes(element: ElementType, *pieces: Shape) -> TensorType:
    """Scratch memory for tensors of these shapes."""
    return TensorType(ElementType.UINT8, (sum(product((element.size, *p)) for p in pieces),))


# ------------------------------------------------------------------------------------------------ the reference


@dataclass(frozen=True)
class DirectionLoop:
    """One direction's way through time."""

    direction: int
    backwards: bool
    steps: int
    lengths: np.ndarray | None

    def times(self) -> Iterator[int]:
        return reversed(range(self.steps)) if self.backwards else iter(range(self.steps))

    def alive(self, t: int, batch: int) -> np.ndarray:
        """[N,1]: whether sequences have a step `t`."""
        return np.ones((batch, 1), bool) if self.lengths is None else (t < self.lengths)[:, None]

    def before(self, t: int, states: np.ndarray, initial: np.ndarray) -> np.ndarray:
        """The states [N,H] before step `t`: out of `states` [S,D,N,H], those after every step, or `initial` [N,H]
        before the first."""
        earlier = t + 1 if self.backwards else t - 1
        if not 0 <= earlier < self.steps:
            return initial
        if not self.backwards:
            return np.asarray(states[earlier, self.direction])
        return np.where(self.alive(earlier, len(initial)), states[earlier, self.direction], initial)


def direction_loops(
    attributes: Mapping[str, Any], steps: int, lengths: np.ndarray | None
) -> Iterator[DirectionLoop]:
    """A loop per direction that `attributes` ask for, over `steps` steps of sequences of these `lengths` [N], None
    where all are whole."""
    for direction in range(directions_of(attributes)):
        backwards = direction == 1 or attributes.get("direction", "forward") == "reverse"
        yield DirectionLoop(direction, backwards, steps, lengths)


def or_zeros(array: np.ndarray | None, *shape: int) -> np.ndarray:
    return np.zeros(shape) if array is None else array


def layer(
    random: np.random.Generator, gates: int, s: int, n: int, i: int, h: int, d: int = 1
) -> list[np.ndarray]:
    """Inputs x, w, r, b, lengths, h0 of a layer, and further states like h0. `random` draws them; `gates` is the
    number of gates, `s` steps, `n` samples, `i` elements of an input, `h` of a state, `d` directions."""
    arrays = [random.standard_normal(shape) for shape in ((s, n, i), (d, gates * h, i), (d, gates * h, h))]
    arrays.append(random.standard_normal((d, 2 * gates * h)))
    lengths = random.integers(0, s + 1, n).astype(np.int32)
    return [*arrays, lengths, *random.standard_normal((2, d, n, h))]


OPS: tuple[()] = ()
