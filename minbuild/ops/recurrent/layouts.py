"""Layout 1 of RNN, GRU and LSTM, where sequences come before time: transposed to layout 0 around the operator.

x [N,S,I], states [N,D,H] and y [N,S,D,H] become x [S,N,I], states [D,N,H] and y [S,D,N,H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.value import Results, Value

MOVED = {
    "x": (1, 0, 2),
    "state": (1, 0, 2),
    "y": (2, 0, 1, 3),
    "y back": (1, 2, 0, 3),
}  # to layout 1; y from it


def time_first(x: Value | None, kind: str) -> Value | None:
    """An input or a gradient of layout 1 in layout 0; absent ones stay absent."""
    return x and x.transpose(MOVED["y back" if kind == "y" else kind])


def batch_first(x: Value | None, kind: str) -> Value | None:
    """The inverse of `time_first`."""
    return x and x.transpose(MOVED[kind])


def swapped(
    b: GraphBuilder, op_type: str, domain: str, inputs: Sequence[int], kinds: Sequence[str]
) -> Results:
    """The operator over transposed inputs (x, and those given), its outputs of these kinds transposed back. `b` is
    the graph, `op_type` of `domain` the operator; `inputs` are numbers of inputs, `kinds` say of each output whether
    it is a sequence or a state."""
    if not b.ctx.attribute("layout", 0):
        return None
    x = [time_first(n, "x") if i in (0, *inputs) else n for i, n in enumerate(b.x)]
    attributes = {**b.ctx.attributes, "layout": 0}
    made = b.many(len(b.y), op_type, *x, domain=domain, **attributes)
    present = [name if y else None for name, y in zip(made, b.y, strict=True)]
    return [batch_first(n, k) if k else n for n, k in zip(present, kinds, strict=False)]


def body_of(
    op_type: str, domain: str, inputs: Sequence[int], kinds: Sequence[str]
) -> Callable[[GraphBuilder], Results]:
    """The body of an operator: `swapped` where sequences come first, else its own kernel. `op_type`, `domain`,
    `inputs` and `kinds` as of `swapped`."""
    return lambda b: swapped(b, op_type, domain, inputs, kinds)


def gradients_of(
    b: GradientBuilder, order: Sequence[Value | None], states: Sequence[int], turned: bool
) -> Results:
    """The gradients of the inputs that are required, out of those of all in `order`; transposed back where the
    forward operator was `turned` to have time first. `states` are the inputs that are states. `b` is the graph."""
    required = [n if i in b.requires_grad else None for i, n in enumerate(order[: len(b.x)])]
    if not turned:
        return required
    return [batch_first(n, "state") if i in (0, *states) else n for i, n in enumerate(required)]


def swap_arrays(arrays: Sequence[np.ndarray | None], inputs: Sequence[int]) -> list[np.ndarray | None]:
    """For references: inputs of layout 1 as layout 0 has them."""
    return [a.swapaxes(0, 1) if a is not None and i in (0, *inputs) else a for i, a in enumerate(arrays)]


OPS: tuple[()] = ()
