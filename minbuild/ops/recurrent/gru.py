"""GRU, as it infers and as it trains, and its gradients."""

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
from minbuild.ops.recurrent.recurrent_packing import features_of, large_layers, packed_kernel_of, packing_of

_DEFAULTS = ("sigmoid", "tanh")
_PARAMS = ("reset_after:int", *rec.activation_params(2))
_TYPES = {"T": FLOATS}
_ARGS = (
    ("y:T=?", "h:T=?", "gates:T=?")
    + ("x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?", "room:scratch")
)  # fmt: skip
_GRAD_ARGS = (
    ("dx:T=?", "dw:T=?", "dr:T=?", "db:T=?", "dh0:T=?")
    + ("x:T", "w:T", "r:T", "b:T?", "lengths:int32?", "h0:T?")
    + ("y:T", "gates:T", "dy:T?", "dh:T?", "room:scratch")
)  # fmt: skip
gru_kernel = KernelFunction(
    "gru",
    _ARGS,
    _PARAMS,
    _TYPES,
    rec.FEATURES,
    work=rec.multiplications(_ARGS, passes=1),
)
gru_grad_kernel = KernelFunction(
    "gru_grad",
    _GRAD_ARGS,
    _PARAMS,
    _TYPES,
    rec.FEATURES,
    work=rec.multiplications(_GRAD_ARGS, passes=2),
)
packed_kernel, packed_grad_kernel = packed_kernel_of(gru_kernel), packed_kernel_of(gru_grad_kernel)
_STATES = (5,)
_KINDS = ("y", "state", "")  # of the outputs


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    """Types of y, y_h, and of the gates that training keeps."""
    sizes = rec.Sizes.of(ctx, 3)
    rec.activations_of(ctx.attributes, _DEFAULTS)
    return tuple(TensorType(ctx.element(), shape) for shape in (sizes.y, sizes.state, sizes.saved))


def params_of(ctx: OpContext) -> tuple[int | float, ...]:
    return (int(ctx.attribute("linear_before_reset", 0)), *rec.params(ctx, _DEFAULTS))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 3), ctx.element()
    results = [ctx.result(i) for i in range(3)]
    needed = [s for s, name in zip((sizes.state, sizes.saved), results[1:], strict=True) if not name]
    packing = packing_of(ctx, gru_kernel, sizes, 2, turns=True)
    call = (packed_kernel if packing else gru_kernel).call(
        *results,
        *(ctx.name(i) for i in range(6)),
        rec.scratch_bytes(element, *needed, sizes.row, *packing),
        types=(element,),
        params=params_of(ctx),
        features=(*rec.features(ctx, _DEFAULTS), *features_of(ctx, packing)),
    )
    return (call,)


def _parts(b: np.ndarray | None, count: int, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Both biases, [D,3*H] each."""
    both = rec.or_zeros(b, count, 6 * hidden).reshape(count, 2, -1)
    return both[:, 0], both[:, 1]


def _run(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    h0: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """The reference, time first: y, y_h, all gates (z, r, candidate)."""
    (steps, batch, _), (count, _, hidden) = x.shape, r.shape
    h = rec.or_zeros(h0, count, batch, hidden).copy()
    first, second = _parts(b, count, hidden)
    y, gates = np.zeros((steps, *h.shape)), np.zeros((steps, count, batch, 3 * hidden))
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        f, g = rec.activations_of(attributes, _DEFAULTS)[d]
        rz, rr, rc = np.split(r[d], 3)
        bz, br, bc = np.split(second[d], 3)
        for t in loop.times():
            alive = loop.alive(t, batch)
            z, reset, c = np.split(x[t] @ w[d].T + first[d], 3, axis=1)
            z, reset = f(z + h[d] @ rz.T + bz), f(reset + h[d] @ rr.T + br)
            if attributes.get("linear_before_reset", 0):
                c = g(c + reset * (h[d] @ rc.T + bc))
            else:
                c = g(c + (reset * h[d]) @ rc.T + bc)
            h[d] = np.where(alive, (1 - z) * c + z * h[d], h[d])
            y[t, d] = np.where(alive, h[d], 0)
            gates[t, d] = np.where(alive, np.hstack([z, reset, c]), 0)
    return y, h, gates


def _reference(attributes: Mapping[str, Any], *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
    if not attributes.get("layout", 0):
        return _run(attributes, *inputs)  # type: ignore[arg-type]
    y, h, gates = _run(attributes, *layouts.swap_arrays(inputs, _STATES))  # type: ignore[arg-type]
    return y.transpose(layouts.MOVED["y"]), h.swapaxes(0, 1), gates


def _gradient(b: GradientBuilder) -> Results:
    b.replace_forward("GRUTraining")
    given: list[Value | None] = [*b.x, *[None] * (6 - len(b.x))]
    x, w, r, bias, lengths, h0 = given
    dy, dh = (*b.dy, None)[:2]
    y, gates = b.save(0), b.save(2)
    attributes = {"hidden_size": b.ctx.shape(2)[2], **b.ctx.attributes}
    turned = bool(attributes.pop("layout", 0))
    if turned:
        x, h0, dh = (layouts.time_first(n, "state") for n in (x, h0, dh))
        y, dy = y.transpose(layouts.MOVED["y back"]), layouts.time_first(dy, "y")
    inputs = (x, w, r, bias, lengths, h0, y, gates, dy, dh)
    made = b.many(5, "GRUGrad", *inputs, domain=MICROSOFT, **attributes)
    order = (*made[:4], None, made[4])
    return layouts.gradients_of(b, order, _STATES, turned)


# ------------------------------------------------------------------------------------------------ gradients


def _grad_infer(ctx: OpContext) -> Sequence[TensorType]:
    return rec.gradient_types(ctx, 3, _DEFAULTS)


def _lower_grad(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 3), ctx.element()
    missing = () if ctx.result(4) else (sizes.state,)
    pieces = (*missing, sizes.all_gates, sizes.row, sizes.row)
    packing = () if ctx.has(4) else packing_of(ctx, gru_grad_kernel, sizes, 2)  # else all steps at once
    pieces = (*pieces, sizes.y) if packing else pieces
    call = (packed_grad_kernel if packing else gru_grad_kernel).call(
        *(ctx.result(i) for i in range(5)),
        *(ctx.name(i) for i in range(10)),
        rec.scratch_bytes(element, *pieces, *packing),
        types=(element,),
        params=params_of(ctx),
        features=(*rec.features(ctx, _DEFAULTS), *features_of(ctx, packing)),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _grad_reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    b: np.ndarray | None,
    lengths: np.ndarray | None,
    h0: np.ndarray | None,
    y: np.ndarray,
    gates: np.ndarray,
    dy: np.ndarray | None = None,
    dh_last: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Backwards through time: gradients of x, w, r, b and h0."""
    (steps, batch, _), (count, _, hidden) = x.shape, r.shape
    shape = (count, batch, hidden)
    dh, initial = rec.or_zeros(dh_last, *shape).copy(), rec.or_zeros(h0, *shape)
    dx, dw, dr, db = np.zeros_like(x), np.zeros_like(w), np.zeros_like(r), np.zeros((count, 6 * hidden))
    second = _parts(b, count, hidden)[1]
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        f, g = rec.activations_of(attributes, _DEFAULTS)[d]
        rc = r[d, 2 * hidden :]
        for t in reversed(list(loop.times())):
            alive = loop.alive(t, batch)
            z, reset, c = np.split(gates[t, d], 3, axis=1)
            before = loop.before(t, y, initial[d])
            flow = dh[d] if dy is None else dh[d] + np.where(alive, dy[t, d], 0)
            dc = flow * (1 - z) * g.slope(c)
            if attributes.get("linear_before_reset", 0):  # c = g(... + reset * (before rc' + bias))
                d_reset, inner = dc * (before @ rc.T + second[d, 2 * hidden :]), dc * reset
                carried, seen = inner @ rc, before
            else:  # c = g(... + (reset * before) rc' + bias)
                d_reset, inner = dc @ rc * before, dc
                carried, seen = dc @ rc * reset, reset * before
            dz, d_reset = flow * (before - c) * f.slope(z), d_reset * f.slope(reset)
            da = np.where(alive, np.hstack([dz, d_reset, dc]), 0)
            plain, inner = da[:, : 2 * hidden], np.where(alive, inner, 0)
            dh[d] = np.where(alive, flow * z + carried + plain @ r[d, : 2 * hidden], dh[d])
            dx[t] += da @ w[d]
            dw[d] += da.T @ x[t]
            dr[d] += np.vstack([plain.T @ before, inner.T @ seen])
            db[d] += np.hstack([da.sum(0), plain.sum(0), inner.sum(0)])
    return dx, dw, dr, db, dh


# ------------------------------------------------------------------------------------------------ cases

_OTHERS: tuple[Mapping[str, Any], ...] = (
    {
        "activations": ("HardSigmoid", "ScaledTanh"),
        "activation_alpha": (0.25, 1.5),
        "activation_beta": (0.5, 0.75),
    },
    {"activations": ("Softsign", "Softplus")},
    {"activations": ("Affine", "Elu"), "activation_alpha": (0.0625, 0.5), "activation_beta": (0.5,)},
    {"clip": 0.5},
)


def _variants(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any]]]:
    for after in (0, 1):
        for s, n, i, h in ((1, 1, 1, 3), (5, 3, 4, 2), (2, 1, 3, 9), (3, 6, 10, 16)):
            x, w, r, b, lengths, h0, _ = rec.layer(random, 3, s=s, n=n, i=i, h=h)
            size: dict[str, Any] = {"hidden_size": h, "linear_before_reset": after}
            name = f"{s}x{n}x{i}x{h} {after}"
            yield f"{name} plain", (x, w, r), size
            yield f"{name} states", (x, w, r, b, None, h0), size
            yield f"{name} lengths", (x, w, r, b, lengths), {**size, "direction": "reverse"}
        for direction in rec.DIRECTIONS:
            d = 2 if direction == "bidirectional" else 1
            x, w, r, b, lengths, h0, _ = rec.layer(random, 3, s=4, n=3, i=2, h=5, d=d)
            size = {"hidden_size": 5, "direction": direction, "linear_before_reset": after}
            name = f"{direction} {after}"
            yield f"{name} all", (x, w, r, b, lengths, h0), size
            first = (x.swapaxes(0, 1), w, r, b, lengths, h0.swapaxes(0, 1))
            yield f"{name} sequences first", first, {**size, "layout": 1}
            for other in _OTHERS:
                given = {**size, **other}
                if "activations" in other:
                    given |= {n: tuple(v) * d for n, v in other.items()}
                yield f"{name} {sorted(other.items())}", (x, w, r, b, lengths, h0), given


def _large(
    random: np.random.Generator,
) -> Iterable[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any]]]:
    for after in (0, 1):
        for name, inputs, attributes in large_layers(random, 3):
            yield f"{name} {after}", inputs, {**attributes, "linear_before_reset": after}


def _cases_of(kept: int) -> Any:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for index, (name, inputs, attributes) in enumerate(_variants(random)):
            smooth = "clip" not in attributes and "HardSigmoid" not in attributes.get("activations", ())
            yield TestCase(name, inputs, attributes, outputs=2 + kept, ulps=32, smooth=smooth)
            if index % 4 == 0:
                absent = frozenset({index // 4 % 2})
                label = f"{name} without {sorted(absent)}"
                yield TestCase(label, inputs, attributes, outputs=2, absent=absent, ulps=32, smooth=smooth)
        for name, inputs, attributes in _large(random):
            yield TestCase(name, inputs, attributes, outputs=2 + kept, ulps=32, smooth=False)

    return cases


def _grad_cases(random: np.random.Generator) -> Iterable[TestCase]:
    chosen = [*(v for v in _variants(random) if not v[2].get("layout")), *_large(random)]
    for index, (name, inputs, attributes) in enumerate(chosen):
        x, w, r, b, lengths, h0 = padded = (*inputs, *(None,) * (6 - len(inputs)))
        y, h, gates = _run(attributes, *padded)  # type: ignore[arg-type]
        flows = [random.standard_normal(a.shape) for a in (y, h)]
        given = [flow if index % 3 in (0, k) else None for k, flow in enumerate(flows, 1)]
        absent = frozenset((set(), {0}, {1, 3}, {2, 4})[index % 4])
        arrays = (x, w, r, b, lengths, h0, y, gates, *given)
        if name.startswith("packed"):
            absent = frozenset()
        yield TestCase(name, arrays, attributes, outputs=5, absent=absent, ulps=64)


gru = Op(
    "GRU",
    since=(7, 14, 22),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gru_kernel, packed_kernel),
    zero_when_absent=frozenset(_STATES),
    decompose=layouts.body_of("GRU", "", _STATES, _KINDS),
    decomposes_to=("Transpose",),
    cases=_cases_of(0),
    gradient=_gradient,
    differentiable=frozenset({0, 1}),
)
gru_training = Op(
    "GRUTraining",
    domain=MICROSOFT,
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(gru_kernel, packed_kernel),
    zero_when_absent=frozenset(_STATES),
    decompose=layouts.body_of("GRUTraining", MICROSOFT, _STATES, _KINDS),
    decomposes_to=("Transpose",),
    cases=_cases_of(1),
    gradient=_gradient,
    differentiable=frozenset({0, 1}),
)
gru_grad = Op(
    "GRUGrad",
    domain=MICROSOFT,
    infer=_grad_infer,
    reference=_grad_reference,
    lower=_lower_grad,
    kernels=(gru_grad_kernel, packed_grad_kernel),
    zero_when_absent=frozenset(_STATES),
    accumulates=frozenset({1, 2, 3}),
    cases=_grad_cases,
)

KERNELS = (gru_kernel, packed_kernel, gru_grad_kernel, packed_grad_kernel)
OPS = (gru, gru_training, gru_grad)
