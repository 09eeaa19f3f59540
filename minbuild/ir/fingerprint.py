"""The fingerprint of a model: what its checkpoints carry, so that those of another model are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from minbuild.ir.artifacts import GRADIENT_SUFFIX, RESET_INPUT, Graph, TrainingArtifacts


def fingerprint_of(artifacts: TrainingArtifacts) -> int:
    """32 bits of what the training graph computes: operators with their attributes, how they are connected, and the
    names of parameters. Neither weights nor free sizes nor the order of nodes nor any other name is part of it, nor
    are evaluation and optimizer: a model with other batches or another optimizer is the same."""
    graph = artifacts.training
    values = _leaves(graph, {p.name for p in artifacts.checkpoint.parameters})
    nodes = []
    for node in graph.nodes:
        attributes = [(name, _plain(value)) for name, value in sorted(node.attributes.items())]
        inputs = [values.get(name, "") for name in node.inputs]
        nodes.append(_digest(node.title, attributes, inputs))
        values |= {name: f"{nodes[-1]} {i}" for i, name in enumerate(node.outputs)}
    outputs = [values.get(name, "") for name in graph.outputs]
    return int(_digest(sorted(nodes), outputs)[:8], 16)


def _leaves(graph: Graph, parameters: Collection[str]) -> dict[str, str]:
    """The identity of each value that no node makes: parameters by name, inputs by type and place."""
    found = {name: _digest(_plain(array)) for name, array in graph.initializers.items()}
    inputs = 0
    for name, tensor in graph.inputs.items():
        if name in parameters or name == RESET_INPUT or name.endswith(GRADIENT_SUFFIX):
            found[name] = f"parameter {name}"
        else:
            found[name] = f"input {inputs} {tensor.element.name}"
            inputs += 1
    return found


def _plain(value: Any) -> Any:
    """An attribute or a constant as something whose text is the same everywhere. Of constants, only single numbers that
    are no sizes count."""
    if isinstance(value, np.ndarray):
        single = value.size == 1 and value.dtype.kind in "fb"
        return value.dtype.name, value.reshape(-1)[0].item() if single else value.ndim
    if isinstance(value, Graph):
        nodes = [(n.title, n.inputs, n.outputs, _plain(n.attributes)) for n in value.nodes]
        return nodes, value.outputs
    if isinstance(value, Mapping):
        return [(name, _plain(item)) for name, item in sorted(value.items())]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value)


def _digest(*parts: Any) -> str:
    return sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()
