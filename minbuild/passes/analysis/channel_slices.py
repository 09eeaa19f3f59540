"""Calls in slices of channels, of one image: the loop over slices of all channels that a tile of calls is to become.

A tile is a sequence of calls with a mark, the attribute `TILE`. The values that only its calls touch need room for one
slice; of all others, each round of the loop sees its own slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from minbuild.ir import Call, Procedure, Role, TensorType
from minbuild.ops import Registry
from minbuild.ops.core.channel_slices import ChannelSlices
from minbuild.passes.analysis.effects import Effects, updates_in_place
from minbuild.passes.analysis.instruction_selection import context_of

TILE = "channel tile"  # attribute of a call: the number of its tile
ROUNDS = 16  # slices of all channels
SLICE = " (slice of channels)"  # in the names of values that a round sees


def slices_of(call: Call, procedure: Procedure, registry: Registry) -> ChannelSlices | None:
    """The slices that a `call` of `procedure` can be computed in, `ROUNDS` of two channels or more; None where it
    cannot. `registry` has its operator."""
    rule = registry.ops[call.op].channels
    found = (
        rule(context_of(call, procedure.values)) if rule and not updates_in_place(call, registry) else None
    )
    if found is None or found.channels % ROUNDS or found.channels < 2 * ROUNDS:
        return None
    together = all(lies_together(procedure.values[name].type, axis) for name, axis in sliced(call, found))
    return found if together else None


def sliced(call: Call, slices: ChannelSlices) -> Iterator[tuple[str, int]]:
    """The values that `call` sees slice by slice, inputs before outputs, and the axes that these are along."""
    for names, axes in ((call.inputs, slices.inputs), (call.outputs, slices.outputs)):
        yield from ((name, axes[i]) for i, name in enumerate(names) if name and i in axes)


def lies_together(tensor: TensorType, axis: int) -> bool:
    """True if every slice along `axis` is a range of bytes."""
    return all(dim == 1 for dim in (tensor.shape or ())[:axis])


def tiles_of(procedure: Procedure) -> dict[int, range]:
    """The calls of every tile, by its number."""
    found: dict[int, list[int]] = defaultdict(list)
    for index, call in enumerate(procedure.calls):
        if TILE in call.attributes:
            found[call.attributes[TILE]].append(index)
    return {number: range(at[0], at[-1] + 1) for number, at in found.items()}


def inner_values(procedure: Procedure, effects: Effects) -> frozenset[str]:
    """Owners of storage that only the calls of one tile touch."""
    touched: dict[str, set[int | None]] = defaultdict(set)
    for call in procedure.calls:
        for owner in effects.touches(call):
            touched[owner].add(call.attributes.get(TILE))
    kept = effects.owners(procedure.outputs)
    return frozenset(
        owner
        for owner, tiles in touched.items()
        if len(tiles) == 1
        and None not in tiles
        and owner not in kept
        and effects.role(owner) is Role.TEMPORARY
    )


def loop_over_slices(procedure: Procedure, registry: Registry) -> Procedure:
    """`procedure` with a loop in the place of every tile; the calls keep their places. `registry` has the operators."""
    tiles = tiles_of(procedure)
    if not tiles:
        return procedure
    effects = Effects(procedure, registry)
    inner = inner_values(procedure, effects)
    values, alias = dict(procedure.values), dict(procedure.alias)

    def part(name: str, axis: int | None) -> str:
        """The name by which a round sees its slice of `name` along `axis`."""
        if not name or axis is None:
            return name
        value = procedure.values[name]
        shape = list(value.type.shape or ())
        shape[axis] //= ROUNDS
        one = TensorType(value.type.element, tuple(shape))
        if effects.owner(name) in inner:
            values[name] = replace(value, type=one)
            return name
        seen = f"{name}{SLICE}"
        values[seen] = replace(value, name=seen, type=one, constant=None, sample=True)
        alias[seen] = name
        return seen

    def sliced(call: Call) -> Call:
        slices = slices_of(call, procedure, registry)
        assert slices is not None, call.node
        attributes = {k: v for k, v in call.attributes.items() if k != TILE}
        attributes |= {name: attributes[name] // ROUNDS for name in slices.counts}
        return replace(
            call,
            inputs=tuple(part(n, slices.inputs.get(i)) for i, n in enumerate(call.inputs)),
            outputs=tuple(part(n, slices.outputs.get(i)) for i, n in enumerate(call.outputs)),
            attributes=attributes,
        )

    calls = tuple(sliced(call) if TILE in call.attributes else call for call in procedure.calls)
    loops = tuple(sorted(tiles.values(), key=lambda loop: loop.start))
    return replace(procedure, calls=calls, values=values, alias=alias, loops=loops, samples=ROUNDS)
