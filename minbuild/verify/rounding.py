"""The largest rounding difference between two machines' results of one step with the same inputs.

Both compute the same formula in the same precision, with sums in another order. Rounding of each operation is what
a change of its operands by one unit in the last place does, so the step is run on this machine with inputs rounded
to a few digits, which shows how far each element moves: for a sum of n terms by about eps * sqrt(sum of squares of
the terms). An error of a whole sum is at most n eps * sum of magnitudes, typically sqrt(n) eps times that (Higham
and Mary, A new approach to probabilistic rounding error analysis, 2019), which is at most n times what the inputs'
rounding does. So

    bound = eps * (A + B n) * movement + C eps_out * |element| + (1 + n) smallest

with n the depth of the sums by the shapes, and the smallest normal number for what processors flush to zero. Elements
that happened to move little have at least a part of the movement of their row, and of their tensor. Bits of what is not
a real number, or is moved as words, must be the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minbuild.ir import ElementType

Array = np.ndarray

# Movement is measured for inputs that are off by this part of themselves (steps.cc).
_COARSE = 2.0**-12
_OPERATIONS, _TERMS, _LAST_PLACES = 32.0, 1.0, 4.0
_OF_ROW, _OF_TENSOR = 2.0**-2, 2.0**-4
# Numbers below are zero where the processor flushes them, which others cannot do.
_SMALLEST = {ElementType.DOUBLE: 2.0**-1022}
_EPSILON = {
    ElementType.FLOAT: 2.0**-23,
    ElementType.DOUBLE: 2.0**-52,
    ElementType.FLOAT16: 2.0**-10,
    ElementType.BFLOAT16: 2.0**-7,
}


def depth_of(outputs: Sequence[int], inputs: Sequence[int]) -> float:
    """The largest number of terms in the sums of a step, from the elements that its arguments have: what is reduced,
    and the inner size of a product."""
    depth = 1.0
    for size in outputs:
        largest = sorted((*inputs, 1, 1), reverse=True)[:2]
        depth = max(depth, largest[0] / max(size, 1), math.sqrt(largest[0] * largest[1] / max(size, 1)))
    return depth


def bounds(element: ElementType, values: Array, movement: Array, depth: float, doubles: bool) -> Array:
    """The bound of each element of an output of type `element` whose values on this machine are `values`, in their
    units and shape. `movement`, of that shape, is how far each element moved when inputs were rounded; `depth` is the
    number of terms in its sums, as `depth_of` has it; `doubles` is true if the step computes in double precision."""
    epsilon = _EPSILON[ElementType.DOUBLE if doubles else ElementType.FLOAT]
    moved = np.nan_to_num(movement.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    rows = moved.reshape(-1, moved.shape[-1]) if moved.ndim and moved.size else moved.reshape(1, -1)
    row = np.repeat(rows.mean(1), rows.shape[1]).reshape(moved.shape) if moved.size else moved
    whole = moved.mean() if moved.size else 0.0
    moved = np.maximum(moved, np.maximum(_OF_ROW * row, _OF_TENSOR * whole))
    last = _LAST_PLACES * max(_EPSILON[element], epsilon) * np.abs(values.astype(np.float64))
    flushed = (1 + depth) * _SMALLEST.get(element, 2.0**-126)
    return epsilon / _COARSE * (_OPERATIONS + _TERMS * depth) * moved + last + flushed
