"""Seeded batches that a model accepts: real numbers normal, indices and labels within the range their readers
allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from minbuild.errors import BadInput
from minbuild.ir import Call, Procedure, Program, TensorType
from minbuild.ir.dims import Dim, Poly, Symbol, evaluate, symbols_in
from minbuild.ops import Registry

# Operators that read an input as an index: operator -> (which input, of which input, axis attribute or fixed
# axis).
_INDICES: Mapping[str, tuple[int, int, str | int]] = {
    ":Gather": (1, 0, "axis"),
    ":GatherElements": (1, 0, "axis"),
    ":GatherND": (1, 0, 0),
    ":SoftmaxCrossEntropyLoss": (1, 0, 1),
    ":NegativeLogLikelihoodLoss": (1, 0, 1),
    "com.microsoft:SoftmaxCrossEntropyLossInternal": (1, 0, 1),
}
# Operators whose output has the values of their first input, perhaps in another place or type.
_CARRIERS = frozenset((":Cast", ":Transpose", ":Slice", ":Expand", ":Concat", ":Tile", ":Split"))
_PLAIN_INTEGERS = 2  # what nobody reads as an index is a flag or a count: 0 or 1


_SIZES = (2, 3, 4, 8, 16, 32, 64, 128, 256)  # of free dimensions, until no tensor is empty


def smallest_sizes(program: Program, minimum: int = 2) -> int:
    """The smallest size from `minimum` on for all free dimensions at which, also with one less, every tensor has
    elements, and those that constant indices read, as reflecting Pads do."""
    shapes = {v.type.shape or () for p in program.procedures for v in p.values.values()}
    needed: set[tuple[Dim, int]] = {(d, 1) for shape in shapes for d in shape if not isinstance(d, int)}
    needed |= {least for p in program.procedures for c in p.calls if (least := _least_size(c, p))}
    for size in (n for n in _SIZES if n >= minimum):
        if all(
            evaluate(d, dict.fromkeys(program.symbols, n)) >= m for d, m in needed for n in (size, size - 1)
        ):
            return size
    return minimum


def _least_size(call: Call, procedure: Procedure) -> tuple[Dim, int] | None:
    """An axis that a call reads at constant indices, and the size that it has at least."""
    if (limit := _limit(call, procedure)) is None:
        return None
    indices = procedure.values[call.inputs[limit[0]]].constant
    if indices is None or not indices.size or isinstance(limit[1], int):
        return None
    return limit[1], max(int(indices.max()) + 1, -int(indices.min()))


def index_limits(program: Program, registry: Registry) -> dict[str, Dim]:
    """User input -> the number its elements must stay below, for inputs that some operator reads as indices.
    Best asked on a program as lowered, where every operator of the file is still there."""
    limits: dict[str, list[Dim]] = {}
    for procedure in program.procedures:
        _add_limits(limits, procedure, {name: name for name in procedure.inputs}, registry)
    return {name: _smallest(found) for name, found in limits.items()}


def _add_limits(
    limits: dict[str, list[Dim]], procedure: Procedure, origin: dict[str, str], registry: Registry
) -> None:
    """Adds to `limits` what the calls of a procedure, or of the body of a loop, read as indices. `origin` has the user
    input that a value is made of, and grows."""
    for call in procedure.calls:
        if call.op in _CARRIERS or registry.ops[call.op].is_view:
            source = next((origin[n] for n in call.inputs if n in origin), None)
            if source is not None:
                origin.update(dict.fromkeys(filter(None, call.outputs), source))
        body = call.attributes.get("body")
        if isinstance(body, Procedure):
            pairs = zip(body.inputs, call.inputs, strict=False)
            inner = {name: origin[outer] for name, outer in pairs if outer in origin}
            _add_limits(limits, body, {**origin, **inner}, registry)
        limit = _limit(call, procedure)
        if limit is not None and call.inputs[limit[0]] in origin:
            limits.setdefault(origin[call.inputs[limit[0]]], []).append(limit[1])


def _limit(call: Call, procedure: Procedure) -> tuple[int, Dim] | None:
    """Which input of a call is an index, and the size it indexes."""
    rule = _INDICES.get(call.op)
    if rule is None or len(call.inputs) <= rule[0]:
        return None
    index, of, axis = rule
    shape = procedure.values[call.inputs[of]].type.shape or ()
    at = int(call.attributes.get(axis, 0)) if isinstance(axis, str) else axis
    return (index, shape[at]) if -len(shape) <= at < len(shape) else None


def _smallest(dims: Sequence[Dim]) -> Dim:
    numbers = [d for d in dims if isinstance(d, int)]
    return min(numbers) if numbers else dims[0]


def inputs_of(program: Program) -> dict[str, TensorType]:
    """Every user input of the training and evaluation graphs."""
    return {name: p.values[name].type for p in program.procedures for name in p.inputs}


def seeded_batch(
    inputs: Mapping[str, TensorType],
    limits: Mapping[str, Dim],
    sizes: Mapping[str, int],
    seed: int,
    scale: float = 1.0,
    lowest: int = 0,
) -> dict[str, np.ndarray]:
    """One batch with free dimensions of these `sizes`, real numbers of this `scale`: the same on every machine.
    `inputs` are types by name, `limits` the bounds of inputs that hold indices; `seed` decides the numbers; integers
    that are no indices begin at `lowest`, which is 1 where they are lengths that must not be 0."""
    random = np.random.default_rng(seed)
    return {
        name: _array(name, tensor, limits=limits, sizes=sizes, random=random, scale=scale, lowest=lowest)
        for name, tensor in inputs.items()
    }


def _array(
    name: str,
    tensor: TensorType,
    limits: Mapping[str, Dim],
    sizes: Mapping[str, int],
    random: np.random.Generator,
    scale: float,
    lowest: int,
) -> np.ndarray:
    shape = tuple(evaluate(d, sizes) for d in tensor.shape or ())
    if name in limits:
        limit = max(1, evaluate(limits[name], sizes))
        return random.integers(0, limit, shape).astype(tensor.element.dtype)
    if tensor.element.is_real:
        drawn = np.asarray(scale * random.standard_normal(shape))
        # A number by itself is a rate, a temperature or a correction of moments, which have roots and logarithms.
        return (drawn if shape else np.abs(drawn)).astype(tensor.element.dtype)
    return random.integers(lowest, lowest + _PLAIN_INTEGERS, shape).astype(tensor.element.dtype)


def sizes_in(
    tensors: Mapping[str, TensorType], arrays: Mapping[str, np.ndarray], where: str
) -> dict[str, int]:
    """The sizes of the free dimensions that make `tensors` the shapes of `arrays`. Raises BadInput naming
    `where` when no sizes do."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if name not in arrays:
            raise BadInput(f"{where}: has no values for input '{name}'. It belongs to another model.")
        shape = tensor.shape or ()
        found = arrays[name].shape
        sizes.update((s, n) for s, n in _symbols(shape, found))
        if len(shape) != len(found) or any(
            evaluate(d, sizes) != n for d, n in zip(shape, found, strict=True) if _known(d, sizes)
        ):
            raise BadInput(
                f"{where}: input '{name}' has shape {list(found)}, "
                f"the model takes [{', '.join(map(str, shape))}]. "
                "Record it with this model, or reduce with other --dim."
            )
    return sizes


def _symbols(shape: Sequence[Dim], found: Sequence[int]) -> Iterator[tuple[str, int]]:
    for dim, size in zip(shape, found, strict=False):
        if isinstance(dim, Poly) and len(dim.terms) == 1:
            (monomial, coefficient) = dim.terms[0]
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
                yield monomial[0].name, size


def _known(dim: Dim, sizes: Mapping[str, int]) -> bool:
    return symbols_in(dim) <= set(sizes)
