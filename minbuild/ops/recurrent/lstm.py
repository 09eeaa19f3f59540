"""LSTM, as it infers and as it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import MICROSOFT, GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.recurrent import layouts
from minbuild.ops.recurrent import recurrent as rec
from minbuild.ops.recurrent.recurrent_packing import features_of, packed_kernel_of, packing_of

DEFAULTS = ("sigmoid", "tanh", "tanh")
_PARAMS = ("coupled:int", *rec.activation_params(3))
_FEATURES = {**rec.FEATURES, "peepholes": "gates that see the memory"}
_TYPES = {"T": FLOATS}
_ARGS = (
    ("y:T=?", "h:T=?", "c:T=?", "cells:T=?", "gates:T=?")
    + ("x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?", "c0:T?", "peepholes:T?", "room:scratch")
)  # fmt: skip
_GRAD_ARGS = (
    ("dx:T=?", "dw:T=?", "dr:T=?", "db:T=?", "dh0:T=?", "dc0:T=?", "d_peepholes:T=?")
    + ("x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?", "y:T", "gates:T", "dy:T?", "dh:T?")
    + ("cells:T", "dc:T?", "c0:T?", "peepholes:T?", "room:scratch")
)  # fmt: skip


lstm_kernel = KernelFunction(
    "lstm", _ARGS, _PARAMS, _TYPES, _FEATURES, work=rec.multiplications(_ARGS, passes=1)
)
lstm_grad_kernel = KernelFunction(
    "lstm_grad", _GRAD_ARGS, _PARAMS, _TYPES, _FEATURES, work=rec.multiplications(_GRAD_ARGS, passes=2)
)
packed_kernel, packed_grad_kernel = packed_kernel_of(lstm_kernel), packed_kernel_of(lstm_grad_kernel)
STATES = (5, 6)  # inputs that are states
_KINDS = ("y", "state", "state", "", "")  # of the outputs


def infer(ctx: OpContext) -> Sequence[TensorType]:
    """Types of y, y_h, y_c, and of what training keeps: all memories and all gates."""
    sizes, element = rec.Sizes.of(ctx, 4), ctx.element()
    rec.activations_of(ctx.attributes, DEFAULTS)
    shapes = (sizes.y, sizes.state, sizes.state, sizes.y, sizes.saved)
    return tuple(TensorType(element, shape) for shape in shapes)


def params_of(ctx: OpContext) -> tuple[int | float, ...]:
    return (int(ctx.attribute("input_forget", 0)), *rec.params(ctx, DEFAULTS))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 4), ctx.element()
    packing = packing_of(ctx, lstm_kernel, sizes, 2, turns=True)
    results = [ctx.result(i) for i in range(5)]
    shapes = (sizes.state, sizes.state, sizes.saved)
    needed = [s for s, name in zip(shapes, (*results[1:3], results[4]), strict=True) if not name]
    call = (packed_kernel if packing else lstm_kernel).call(
        *results,
        *(ctx.name(i) for i in range(8)),
        rec.scratch_bytes(element, *needed, *packing),
        types=(element,),
        params=params_of(ctx),
        features=(
            *rec.features(ctx, DEFAULTS),
            *features_of(ctx, packing),
            *(("peepholes",) if ctx.has(7) else ()),
        ),
    )
    return (call,)


def gate_activations(
    attributes: Mapping[str, Any], direction: int
) -> tuple[rec.Activation, rec.Activation, rec.Activation]:
    """Of gates, candidate and memory; limits do not apply to the memory, as in ONNX Runtime."""
    f, g, h = rec.activations_of(attributes, DEFAULTS)[direction]
    return f, g, rec.Activation(h.name, h.alpha, h.beta)


def run(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    h0: np.ndarray | None = None,
    c0: np.ndarray | None = None,
    peepholes: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """The reference, time first: y, y_h, y_c, all memories, all gates (i, o, f, candidate). `x` is [S,N,I], `w`
    [D,4H,I], `r` [D,4H,H], `b` [D,8H], `lengths` [N], `h0` and `c0` [D,N,H], `peepholes` [D,3H]; `attributes` are the
    operator's."""
    steps, batch, _ = x.shape
    count, _, hidden = r.shape
    h, c = (rec.or_zeros(s, count, batch, hidden).copy() for s in (h0, c0))
    bias = rec.or_zeros(b, count, 8 * hidden).reshape(count, 2, -1).sum(1)
    peeps = rec.or_zeros(peepholes, count, 3 * hidden).reshape(count, 3, hidden)
    y, cells = np.zeros((2, steps, count, batch, hidden))
    gates = np.zeros((steps, count, batch, 4 * hidden))
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        f_of, g_of, h_of = gate_activations(attributes, d)
        for t in loop.times():
            alive = loop.alive(t, batch)
            i, o, f, g = np.split(x[t] @ w[d].T + h[d] @ r[d].T + bias[d], 4, axis=1)
            i, f, g = f_of(i + peeps[d, 0] * c[d]), f_of(f + peeps[d, 2] * c[d]), g_of(g)
            f = 1 - i if attributes.get("input_forget", 0) else f
            memory = f * c[d] + i * g
            o = f_of(o + peeps[d, 1] * memory)
            c[d] = np.where(alive, memory, c[d])
            h[d] = np.where(alive, o * h_of(memory), h[d])
            y[t, d], cells[t, d] = np.where(alive, h[d], 0), np.where(alive, c[d], 0)
            gates[t, d] = np.where(alive, np.hstack([i, o, f, g]), 0)
    return y, h, c, cells, gates


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
    if not attributes.get("layout", 0):
        return run(attributes, *inputs)  # type: ignore[arg-type]
    y, h, c, *kept = run(attributes, *layouts.swap_arrays(inputs, STATES))  # type: ignore[arg-type]
    return (y.transpose(layouts.MOVED["y"]), h.swapaxes(0, 1), c.swapaxes(0, 1), *kept)


def _gradient(b: GradientBuilder) -> Results:
    """ONNX Runtime's LSTMGrad does not know peepholes; with them, one that does."""
    b.replace_forward("LSTMTraining")
    given: list[Value | None] = [*b.x, *[None] * (8 - len(b.x))]
    x, w, r, _, lengths, h0, c0, peepholes = given
    dy, dh, dc = (*b.dy, None, None)[:3]
    y, cells, gates = b.save(0), b.save(3), b.save(4)
    turned = bool(b.ctx.attribute("layout", 0))
    if turned:
        x, h0, c0, dh, dc = (layouts.time_first(n, "state") for n in (x, h0, c0, dh, dc))
        y, dy = y.transpose(layouts.MOVED["y back"]), layouts.time_first(dy, "y")
    inputs = (x, w, r, lengths, h0, c0, y, cells, gates, dy, dh, dc)
    domain, extra = ("minbuild", (peepholes,)) if peepholes else (MICROSOFT, ())
    attributes = {"hidden_size": b.ctx.shape(2)[2], **b.ctx.attributes, "layout": 0}
    if not turned:
        attributes.pop("layout")
    made = b.many(6 + len(extra), "LSTMGrad", *inputs, *extra, domain=domain, **attributes)
    order = (*made[:4], None, *made[4:])
    return layouts.gradients_of(b, order, STATES, turned)


# ------------------------------------------------------------------------------------------------ cases

_OTHERS: tuple[Mapping[str, Any], ...] = (
    {
        "activations": ("HardSigmoid", "ScaledTanh", "Softsign"),
        "activation_alpha": (0.25, 1.5),
        "activation_beta": (0.5, 0.75),
    },
    {"activations": ("Sigmoid", "Elu", "Softplus"), "activation_alpha": (0.5,)},
    {
        "activations": ("Affine", "LeakyRelu", "Tanh"),
        "activation_alpha": (0.25, 0.125),
        "activation_beta": (0.5,),
    },
    {"clip": 0.5},
    {"input_forget": 1},
)
SHAPES = ((1, 1, 1, 3), (5, 3, 4, 2), (2, 1, 3, 9), (3, 6, 10, 16))  # S, N, I, H


def variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any], bool]]:
    """Name, inputs, attributes and whether differentiable, of every way to use an LSTM."""
    for s, n, i, h in SHAPES:
        x, w, r, b, lengths, h0, c0 = rec.layer(random, 4, s=s, n=n, i=i, h=h)
        p = random.standard_normal((1, 3 * h))
        size: dict[str, Any] = {"hidden_size": h}
        name = f"{s}x{n}x{i}x{h}"
        yield f"{name} plain", (x, w, r), size, True
        yield f"{name} states", (x, w, r, b, None, h0, c0), size, True
        yield f"{name} lengths", (x, w, r, b, lengths), {**size, "direction": "reverse"}, True
        yield f"{name} peepholes", (x, w, r, None, lengths, h0, c0, p), {**size, "input_forget": h % 2}, True
    for direction in rec.DIRECTIONS:
        d = 2 if direction == "bidirectional" else 1
        x, w, r, b, lengths, h0, c0 = rec.layer(random, 4, s=4, n=3, i=2, h=5, d=d)
        p = random.standard_normal((d, 15))
        size = {"hidden_size": 5, "direction": direction}
        yield direction, (x, w, r, b), size, True
        yield f"{direction} all", (x, w, r, b, lengths, h0, c0, p), size, True
        first = (x.swapaxes(0, 1), w, r, b, lengths, h0.swapaxes(0, 1), c0.swapaxes(0, 1), p)
        yield f"{direction} sequences first", first, {**size, "layout": 1}, True
        for other in _OTHERS:
            given = {**size, **other}
            if "activations" in other:
                given |= {n: tuple(v) * d for n, v in other.items()}
            smooth = "clip" not in other and "HardSigmoid" not in other.get("activations", ())
            yield f"{direction} {sorted(other.items())}", (x, w, r, b, lengths, h0, c0), given, smooth
    x, w, r, b, *_ = rec.layer(random, 4, s=3, n=2, i=4, h=2)
    yield "Relu", (x, w, r, b), {"hidden_size": 2, "activations": ("Sigmoid", "Relu", "Relu")}, False
    threshold = {"activations": ("Sigmoid", "ThresholdedRelu", "Tanh"), "activation_alpha": (0.5,)}
    yield "ThresholdedRelu", (x, w, r, b), {"hidden_size": 2, **threshold}, False


def large(
    random: np.random.Generator, first: bool, ends: bool, direction: str = "forward", batch: int = 2
) -> tuple[tuple[np.ndarray | None, ...], dict[str, Any]]:
    """Inputs and attributes of a size that is packed, with the `first` states or not, with sequences that have `ends`
    of their own or not, `batch` of them; `random` draws them, and the layer walks in `direction`."""
    steps, features, hidden, count = 3, 7, 165, 2 if direction == "bidirectional" else 1
    sizes = (steps, batch, features), (count, 4 * hidden, features), (count, 4 * hidden, hidden)
    x, w, r = (random.standard_normal(shape) * 0.2 for shape in sizes)
    h0, c0 = (random.standard_normal((count, batch, hidden)) if first else None for _ in "hc")
    lengths = np.array([3, 2], np.int32) if ends else None
    attributes = {"hidden_size": hidden} | ({} if direction == "forward" else {"direction": direction})
    return (x, w, r, None, lengths, h0, c0, None), attributes


# Directions, numbers of sequences, and first states or not, of large layers that do not walk forwards.
TURNED = (("reverse", 2, True), ("bidirectional", 2, False), ("bidirectional", 5, True))


def _cases_of(kept: int) -> Any:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for index, (name, inputs, attributes, smooth) in enumerate(variants(random)):
            yield TestCase(name, inputs, attributes, outputs=3 + kept, ulps=32, smooth=smooth)
            if index % 4 == 0:
                absent = frozenset(({0}, {1}, {0, 2}, {1, 2})[index // 4 % 4])
                label = f"{name} without {sorted(absent)}"
                yield TestCase(label, inputs, attributes, outputs=3, absent=absent, ulps=32, smooth=smooth)
        for ends in (False, True):
            inputs, attributes = large(random, ends, ends)
            yield TestCase(f"packed {ends}", inputs, attributes, outputs=3 + kept, ulps=32, smooth=False)
        for direction, batch, first in TURNED:
            inputs, attributes = large(random, first, ends=False, direction=direction, batch=batch)
            name = f"packed {direction} {batch}"
            yield TestCase(name, inputs, attributes, outputs=3 + kept, ulps=32, smooth=False)

    return cases


lstm = Op(
    "LSTM",
    since=(7, 14, 22),
    infer=infer,
    reference=_reference,
    lower=_lower,
    kernels=(lstm_kernel, packed_kernel),
    zero_when_absent=frozenset(STATES),
    decompose=layouts.body_of("LSTM", "", STATES, _KINDS),
    decomposes_to=("Transpose",),
    cases=_cases_of(0),
    gradient=_gradient,
    differentiable=frozenset({0, 1, 2}),
)
lstm_training = Op(
    "LSTMTraining",
    domain=MICROSOFT,
    infer=infer,
    reference=_reference,
    lower=_lower,
    kernels=(lstm_kernel, packed_kernel),
    zero_when_absent=frozenset(STATES),
    decompose=layouts.body_of("LSTMTraining", MICROSOFT, STATES, _KINDS),
    decomposes_to=("Transpose",),
    cases=_cases_of(2),
    gradient=_gradient,
    differentiable=frozenset({0, 1, 2}),
)

KERNELS = (lstm_kernel, packed_kernel, lstm_grad_kernel, packed_grad_kernel)
OPS = (lstm, lstm_training)
