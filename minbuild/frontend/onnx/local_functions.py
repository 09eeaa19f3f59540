"""Functions that a model defines itself: checked, bounded, and replaced by their nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx.inliner
from onnx import ModelProto

from minbuild.errors import BadInput

# Of a model whose functions are replaced, which takes some seconds: 30 levels of two calls each are a thousand million.
MOST_NODES = 50_000


def inline_functions(model: ModelProto, path: Path) -> ModelProto:
    """The model with every call of a local function replaced by the function's nodes.

    Raises BadInput for functions that are defined twice, call themselves, or expand to more than MOST_NODES nodes.
    """
    if not model.functions:
        return model
    keys = [(f.domain, f.name, f.overload) for f in model.functions]
    twice = [name for (_, name, _), times in Counter(keys).items() if times > 1]
    if twice:
        raise BadInput(f"{path}: function '{twice[0]}' is defined twice. Keep one of its definitions.")
    nodes = sum(_sizes(model, path).get((n.domain, n.op_type, n.overload), 1) for n in model.graph.node)
    if nodes > MOST_NODES:
        raise BadInput(
            f"{path}: its functions stand for {nodes:,} nodes, more than {MOST_NODES:,}. "
            "Export a model with fewer calls."
        )
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # its errors have no common class
        raise BadInput(
            f"{path}: its functions cannot be inlined: {_first_line(error)}. Export it again."
        ) from error


def _sizes(model: ModelProto, path: Path) -> dict[tuple[str, str, str], int]:
    """Function -> the number of nodes that one call expands to. Raises BadInput where functions form a cycle."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    for start in functions:
        pending, open_calls = [start], set()
        while pending:
            key = pending[-1]
            calls = [k for n in functions[key].node if (k := (n.domain, n.op_type, n.overload)) in functions]
            missing = [k for k in calls if k not in sizes]
            if key in sizes or not missing:
                sizes.setdefault(key, len(functions[key].node) - len(calls) + sum(sizes[k] for k in calls))
                open_calls.discard(key)
                pending.pop()
            elif key in open_calls:
                raise BadInput(f"{path}: function '{key[1]}' calls itself. Write the recursion as a Loop.")
            else:
                open_calls.add(key)
                pending += missing
    return sizes


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
