"""RNN and its gradients. Training needs nothing but the outputs, so it runs the same operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import FLOATS, KernelCall, KernelFunction, Op, OpContext, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder
from minbuild.ops.core.value import Results, Value
from minbuild.ops.recurrent import layouts
from minbuild.ops.recurrent import recurrent as rec
from minbuild.ops.recurrent.recurrent_packing import features_of, large_layers, packed_kernel_of, packing_of

_DEFAULTS = ("tanh",)
_TYPES = {"T": FLOATS}
_ARGS = ("y:T=?", "h:T=?", "x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?", "room:scratch")
_GRAD_ARGS = (
    ("dx:T=?", "dw:T=?", "dr:T=?", "db:T=?", "dh0:T=?")
    + ("x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?", "y:T", "dy:T?", "dh:T?", "room:scratch")
)  # fmt: skip
rnn_kernel = KernelFunction(
    "rnn",
    _ARGS,
    rec.activation_params(1),
    _TYPES,
    rec.FEATURES,
    work=rec.multiplications(_ARGS, passes=1),
)
rnn_grad_kernel = KernelFunction(
    "rnn_grad",
    _GRAD_ARGS,
    rec.activation_params(1),
    _TYPES,
    rec.FEATURES,
    work=rec.multiplications(_GRAD_ARGS, passes=2),
)
packed_kernel, packed_grad_kernel = packed_kernel_of(rnn_kernel), packed_kernel_of(rnn_grad_kernel)
_STATES = (5,)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    sizes = rec.Sizes.of(ctx, 1)
    rec.activations_of(ctx.attributes, _DEFAULTS)
    return tuple(TensorType(ctx.element(), shape) for shape in (sizes.y, sizes.state))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 1), ctx.element()
    results = [ctx.result(i) for i in range(2)]
    needed = [s for s, name in zip((sizes.y, sizes.state), results, strict=True) if not name]
    packing = packing_of(ctx, rnn_kernel, sizes, 2, turns=True)
    call = (packed_kernel if packing else rnn_kernel).call(
        *results,
        *(ctx.name(i) for i in range(6)),
        rec.scratch_bytes(element, *needed, *packing),
        types=(element,),
        params=rec.params(ctx, _DEFAULTS),
        features=(*rec.features(ctx, _DEFAULTS), *features_of(ctx, packing)),
    )
    return (call,)


def _run(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    h0: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The reference, time first: y and y_h."""
    (steps, batch, _), (count, _, hidden) = x.shape, r.shape
    h = rec.or_zeros(h0, count, batch, hidden).copy()
    bias = rec.or_zeros(b, count, 2 * hidden).reshape(count, 2, hidden).sum(1)
    y = np.zeros((steps, *h.shape))
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        (f,) = rec.activations_of(attributes, _DEFAULTS)[d]
        for t in loop.times():
            alive = loop.alive(t, batch)
            h[d] = np.where(alive, f(x[t] @ w[d].T + h[d] @ r[d].T + bias[d]), h[d])
            y[t, d] = np.where(alive, h[d], 0)
    return y, h


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
    if not attributes.get("layout", 0):
        return _run(attributes, *inputs)  # type: ignore[arg-type]
    y, h = _run(attributes, *layouts.swap_arrays(inputs, _STATES))  # type: ignore[arg-type]
    return y.transpose(layouts.MOVED["y"]), h.swapaxes(0, 1)


def _gradient(b: GradientBuilder) -> Results:
    given: list[Value | None] = [*b.x, *[None] * (6 - len(b.x))]
    x, w, r, _, lengths, h0 = given
    dy, dh = (*b.dy, None)[:2]
    y, attributes = b.save(0), dict(b.ctx.attributes)
    turned = bool(attributes.pop("layout", 0))
    if turned:
        x, h0, dh = (layouts.time_first(n, "state") for n in (x, h0, dh))
        y, dy = y.transpose(layouts.MOVED["y back"]), layouts.time_first(dy, "y")
    inputs = (x, w, r, lengths, h0, y, dy, dh)
    made = b.many(5, "RNNGrad", *inputs, domain="minbuild", **attributes)
    order = (*made[:4], None, made[4])
    return layouts.gradients_of(b, order, _STATES, turned)


# ------------------------------------------------------------------------------------------------ gradients


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    return rec.gradient_types(ctx, 1, _DEFAULTS)


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 1), ctx.element()
    x, w, r, lengths, h0, y, dy, dh = (ctx.name(i) for i in range(8))
    missing = () if ctx.result(4) else (sizes.state,)
    packing = () if ctx.has(3) else packing_of(ctx, rnn_grad_kernel, sizes, 2)  # else all steps at once
    call = (packed_grad_kernel if packing else rnn_grad_kernel).call(
        *(ctx.result(i) for i in range(5)),
        *(x, w, r, "", lengths, h0, y, dy, dh),
        rec.scratch_bytes(element, *missing, sizes.all_gates, sizes.row, *packing),
        types=(element,),
        params=rec.params(ctx, _DEFAULTS),
        features=(*rec.features(ctx, _DEFAULTS), *features_of(ctx, packing)),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _grad_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    lengths: np.ndarray | None,
    h0: np.ndarray | None,
    y: np.ndarray,
    dy: np.ndarray | None = None,
    dh_last: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Backwards through time: gradients of x, w, r, b and h0."""
    (steps, batch, _), (count, _, hidden) = x.shape, r.shape
    shape = (count, batch, hidden)
    dh, initial = rec.or_zeros(dh_last, *shape).copy(), rec.or_zeros(h0, *shape)
    dx, dw, dr, db = np.zeros_like(x), np.zeros_like(w), np.zeros_like(r), np.zeros((count, hidden))
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        (f,) = rec.activations_of(attributes, _DEFAULTS)[d]
        for t in reversed(list(loop.times())):
            alive = loop.alive(t, batch)
            flow = dh[d] if dy is None else dh[d] + np.where(alive, dy[t, d], 0)
            da = np.where(alive, flow * f.slope(y[t, d]), 0)
            dh[d] = np.where(alive, 0, dh[d]) + da @ r[d]
            dx[t] += da @ w[d]
            dw[d] += da.T @ x[t]
            dr[d] += da.T @ loop.before(t, y, initial[d])
            db[d] += da.sum(0)
    return dx, dw, dr, np.hstack([db, db]), dh


# ------------------------------------------------------------------------------------------------ cases

# Name, numbers, whether differentiable at all arguments.
_FUNCTIONS: tuple[tuple[str, tuple[float, ...], tuple[float, ...], bool], ...] = (
    ("Sigmoid", (), (), True),
    ("Relu", (), (), False),
    ("Affine", (), (), True),
    ("Affine", (0.5,), (0.25,), True),
    ("LeakyRelu", (), (), False),
    ("LeakyRelu", (0.25,), (), False),
    ("ThresholdedRelu", (), (), False),
    ("ThresholdedRelu", (0.25,), (), False),
    ("ScaledTanh", (), (), True),
    ("ScaledTanh", (1.5,), (0.5,), True),
    ("HardSigmoid", (), (), False),
    ("HardSigmoid", (0.5,), (0.25,), False),
    ("Elu", (), (), True),
    ("Elu", (0.5,), (), False),
    ("Softsign", (), (), True),
    ("Softplus", (), (), True),
)


def _variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any], bool]]:
    for s, n, i, h in ((1, 1, 1, 3), (5, 3, 4, 2), (2, 1, 3, 9), (3, 6, 10, 16)):
        x, w, r, b, lengths, h0, _ = rec.layer(random, 1, s=s, n=n, i=i, h=h)
        name = f"{s}x{n}x{i}x{h}"
        yield f"{name} plain", (x, w, r), {"hidden_size": h}, True
        yield f"{name} states", (x, w, r, b, None, h0), {"hidden_size": h}, True
        yield f"{name} lengths", (x, w, r, b, lengths), {"hidden_size": h, "direction": "reverse"}, True
    for direction in rec.DIRECTIONS:
        d = 2 if direction == "bidirectional" else 1
        x, w, r, b, lengths, h0, _ = rec.layer(random, 1, s=4, n=3, i=2, h=5, d=d)
        size = {"hidden_size": 5, "direction": direction}
        yield f"{direction} all", (x, w, r, b, lengths, h0), size, True
        first = (x.swapaxes(0, 1), w, r, b, lengths, h0.swapaxes(0, 1))
        yield f"{direction} sequences first", first, {**size, "layout": 1}, True
        yield f"{direction} clip", (x, w, r, b), {**size, "clip": 0.5}, False
        for name, alpha, beta, smooth in _FUNCTIONS:
            given = {"activations": (name,), "activation_alpha": alpha, "activation_beta": beta}
            repeated = {n: v * d for n, v in given.items() if v}
            yield f"{direction} {given}", (x, w, r, b), {**size, **repeated}, smooth


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    for index, (name, inputs, attributes, smooth) in enumerate(_variants(random)):
        absent = frozenset((set(), {0}, set(), {1})[index % 4])
        yield TestCase(name, inputs, attributes, outputs=2, absent=absent, ulps=32, smooth=smooth)
    for name, inputs, attributes in large_layers(random, 1):
        yield TestCase(name, inputs, attributes, outputs=2, ulps=32, smooth=False)


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    chosen = [v[:3] for v in _variants(random) if not v[2].get("layout")]
    chosen += large_layers(random, 1)
    for index, (name, inputs, attributes) in enumerate(chosen):
        x, w, r, _, lengths, h0 = padded = (*inputs, *(None,) * (6 - len(inputs)))
        y, h = _run(attributes, *padded)  # type: ignore[arg-type]
        flows = [random.standard_normal(a.shape) for a in (y, h)]
        given = [flow if index % 3 in (0, k) else None for k, flow in enumerate(flows, 1)]
        absent = frozenset(() if name.startswith("packed") else (set(), {0}, {1, 3}, {2, 4})[index % 4])
        yield TestCase(name, (x, w, r, lengths, h0, y, *given), attributes, outputs=5, absent=absent, ulps=64)


rnn = Op(
    "RNN",
    since=(7, 14, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(rnn_kernel, packed_kernel),
    zero_when_absent=frozenset(_STATES),
    decompose=layouts.body_of("RNN", "", _STATES, ("y", "state")),
    decomposes_to=("Transpose",),
    cases=_cases,
    gradient=_gradient,
    differentiable=frozenset({0, 1}),
)
rnn_grad = Op(
    "RNNGrad",
    domain="minbuild",
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(rnn_grad_kernel, packed_grad_kernel),
    zero_when_absent=frozenset({4}),
    accumulates=frozenset({1, 2, 3}),
    cases=_grad_cases,
)

KERNELS = (rnn_kernel, packed_kernel, rnn_grad_kernel, packed_grad_kernel)
OPS = (rnn, rnn_grad)
