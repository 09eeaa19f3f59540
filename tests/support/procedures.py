"""Procedures made by hand, a few calls long: what tests of single rewrites and analyses start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minbuild.ir import Call, Procedure, Role, TensorType, Value


def call(op: str, inputs: str, outputs: str, **attributes: object) -> Call:
    """A call of the node `op_outputs`; names are parted by commas, and an empty one is absent."""
    return Call(op, 17, f"{op}_{outputs}", tuple(inputs.split(",")), tuple(outputs.split(",")), attributes)


def procedure_of(
    calls: tuple[Call, ...],
    types: Mapping[str, TensorType],
    roles: Mapping[str, Role] | None = None,
    **changes: object,
) -> Procedure:
    """A procedure from x to y; other values are temporaries, but for those with `roles` of their own."""
    given = {"x": Role.INPUT, **(roles or {})}
    values = {n: Value(n, t, given.get(n, Role.TEMPORARY)) for n, t in types.items()}
    return replace(Procedure("train", "model.onnx", calls, values, ("x",), ("y",)), **changes)  # type: ignore[arg-type]
