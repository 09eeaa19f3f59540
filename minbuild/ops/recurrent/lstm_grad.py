"""The gradients of LSTM, from the gates and memories that training keeps.

ONNX Runtime's LSTMGrad is not given the peepholes and so lacks a part of the gradients where a model has them; the
operator of the same name in the domain minbuild takes them as a thirteenth input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import TensorType
from minbuild.ops.core.definition import KernelCall, Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import MICROSOFT
from minbuild.ops.recurrent import lstm as forward
from minbuild.ops.recurrent import recurrent as rec
from minbuild.ops.recurrent.lstm import DEFAULTS, gate_activations, params_of, run, variants
from minbuild.ops.recurrent.recurrent_packing import features_of, packing_of

X, W, R, LENGTHS, H0, C0, Y, CELLS, GATES, DY, DH, DC, PEEPHOLES = range(13)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    sizes, element = rec.Sizes.of(ctx, 4), ctx.element()
    rec.check_slopes(rec.activations_of(ctx.attributes, DEFAULTS))
    if len(ctx.result_names) > 6 and ctx.result_names[6] and not ctx.has(PEEPHOLES):
        raise UnsupportedUse(
            "gradients of peepholes need the peepholes, which ONNX Runtime's operator is not given"
        )
    (directions, _, hidden), weights = sizes.state, (ctx.shape(W), ctx.shape(R))
    state, bias = sizes.state, (directions, 8 * hidden)
    shapes = (ctx.shape(X), *weights, bias, state, state, (directions, 3 * hidden))
    return tuple(TensorType(element, shape) for shape in shapes)


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    sizes, element = rec.Sizes.of(ctx, 4), ctx.element()
    names = [ctx.name(i) for i in range(13)]
    results = [ctx.result(i) for i in range(7)]
    missing = [sizes.state for name in results[4:6] if not name]
    pieces = (*missing, sizes.all_gates, sizes.row, sizes.row)
    packing = (
        () if names[LENGTHS] else packing_of(ctx, forward.lstm_grad_kernel, sizes, R)
    )  # else all steps at once
    call = (forward.packed_grad_kernel if packing else forward.lstm_grad_kernel).call(
        *results,
        *(names[X], names[W], names[R], "", names[LENGTHS], names[H0]),
        *(names[Y], names[GATES], names[DY], names[DH]),
        *(names[CELLS], names[DC], names[C0], names[PEEPHOLES]),
        rec.scratch_bytes(element, *pieces, *packing),
        types=(element,),
        params=params_of(ctx),
        features=(
            *rec.features(ctx, DEFAULTS),
            *features_of(ctx, packing),
            *(("peepholes",) if names[PEEPHOLES] else ()),
        ),
        accumulate=ctx.accumulate,
    )
    return (call,)


def _reference(
    attributes: Mapping[str, Any],
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    lengths: np.ndarray | None,
    h0: np.ndarray | None,
    c0: np.ndarray | None,
    y: np.ndarray,
    cells: np.ndarray,
    gates: np.ndarray,
    dy: np.ndarray | None = None,
    dh_last: np.ndarray | None = None,
    dc_last: np.ndarray | None = None,
    peepholes: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Backwards through time: gradients of x, w, r, b, h0, c0 and peepholes."""
    (steps, batch, _), (count, _, hidden) = x.shape, r.shape
    shape = (count, batch, hidden)
    dh, dc = rec.or_zeros(dh_last, *shape).copy(), rec.or_zeros(dc_last, *shape).copy()
    peeps = rec.or_zeros(peepholes, count, 3 * hidden).reshape(count, 3, 1, hidden)
    dx, dw, dr, dp = np.zeros_like(x), np.zeros_like(w), np.zeros_like(r), np.zeros((count, 3, hidden))
    db = np.zeros((count, 4 * hidden))
    for loop in rec.direction_loops(attributes, steps, lengths):
        d = loop.direction
        f_of, g_of, h_of = gate_activations(attributes, d)
        for t in reversed(list(loop.times())):
            alive = loop.alive(t, batch)
            i, o, f, g = np.split(gates[t, d], 4, axis=1)
            before = loop.before(t, cells, rec.or_zeros(c0, *shape)[d])
            flow = dh[d] if dy is None else dh[d] + np.where(alive, dy[t, d], 0)
            shown = h_of(cells[t, d])
            do = flow * shown * f_of.slope(o)
            memory = dc[d] + flow * o * h_of.slope(shown) + do * peeps[d, 1]
            coupled = bool(attributes.get("input_forget", 0))
            di = memory * (g - before if coupled else g) * f_of.slope(i)
            df = memory * before * f_of.slope(f) * (not coupled)
            da = np.where(alive, np.hstack([di, do, df, memory * i * g_of.slope(g)]), 0)
            carried = memory * f + di * peeps[d, 0] + df * peeps[d, 2]
            dc[d] = np.where(alive, carried, dc[d])
            dh[d] = np.where(alive, 0, dh[d]) + da @ r[d]
            dx[t] += da @ w[d]
            dw[d] += da.T @ x[t]
            dr[d] += da.T @ loop.before(t, y, rec.or_zeros(h0, *shape)[d])
            db[d] += da.sum(0)
            for k, (part, seen) in enumerate(((0, before), (1, cells[t, d]), (2, before))):
                dp[d, k] += (np.split(da, 4, axis=1)[part] * seen).sum(0)
    return dx, dw, dr, np.hstack([db, db]), dh, dc, dp.reshape(count, -1)


def _cases_of(with_peepholes: bool) -> Any:
    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        chosen = [v for v in variants(random) if not v[2].get("layout")]
        chosen = [v for v in chosen if with_peepholes == (len(v[1]) > 7)]
        for index, (name, inputs, attributes, _) in enumerate(chosen):
            padded = (*inputs, *(None,) * (8 - len(inputs)))
            x, w, r, _, lengths, h0, c0, p = padded
            y, h, c, cells, gates = run(attributes, *padded)  # type: ignore[arg-type]
            flows = [random.standard_normal(a.shape) for a in (y, h, c)]
            given = [flow if index % 4 in (0, k) else None for k, flow in enumerate(flows, 1)]
            saved = (x, w, r, lengths, h0, c0, y, cells, gates, *given)
            arrays = (*saved, p) if with_peepholes else saved
            absent = (set(), {0}, {1, 3}, {2, 4, 5})[index % 4]
            outputs = 7 if with_peepholes else 6
            yield TestCase(name, arrays, attributes, outputs=outputs, absent=frozenset(absent), ulps=64)
        for index in () if with_peepholes else range(2):
            yield _large_case(random, bool(index), "forward", batch=2)
        for direction, batch, first in () if with_peepholes else forward.TURNED:
            yield _large_case(random, first, direction, batch=batch)

    return cases


def _large_case(random: np.random.Generator, first: bool, direction: str, batch: int) -> TestCase:
    """Of a size that is packed, with or without first states, of `batch` sequences."""
    (x, w, r, _, _, h0, c0, _), attributes = forward.large(
        random, first, ends=False, direction=direction, batch=batch
    )
    assert x is not None and w is not None and r is not None
    y, h, c, cells, gates = run(attributes, x, w=w, r=r, b=None, lengths=None, h0=h0, c0=c0, peepholes=None)
    flows = [random.standard_normal(a.shape) for a in (y, h, c)]
    saved = (x, w, r, None, h0, c0, y, cells, gates, *flows)
    return TestCase(
        f"packed {direction} {batch} {first}", saved, attributes, outputs=6, ulps=64, smooth=False
    )


lstm_grad = Op(
    "LSTMGrad",
    domain=MICROSOFT,
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(forward.lstm_grad_kernel, forward.packed_grad_kernel),
    zero_when_absent=frozenset({H0, C0}),
    accumulates=frozenset({1, 2, 3}),
    cases=_cases_of(False),
)
lstm_grad_with_peepholes = Op(
    "LSTMGrad",
    domain="minbuild",
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(forward.lstm_grad_kernel, forward.packed_grad_kernel),
    zero_when_absent=frozenset({H0, C0}),
    accumulates=frozenset({1, 2, 3, 6}),
    cases=_cases_of(True),
)

OPS = (lstm_grad, lstm_grad_with_peepholes)
