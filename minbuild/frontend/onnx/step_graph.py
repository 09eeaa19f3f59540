"""A whole training step as an ONNX graph, (state, batch, rate) -> (next state, loss), with training information.

Each pair names an input and the output with its new value. These inputs become initializers, with a binding to their
output; what leads to the other outputs is the inference graph, and the rest of the nodes the algorithm behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.frontend.onnx.reader import parse_model
from minbuild.options.did_you_mean import did_you_mean, listed

# How frameworks name the next value of a state: the end of the old name, and the beginning and the end of the new one.
_RULES = (
    ("", "", "_next"), ("", "next_", ""), ("", "", "_new"), ("", "new_", ""), ("", "", ".next"), ("", "", ".new"),
    ("", "", "_updated"), ("", "updated_", ""), ("", "", "_out"), ("", "", "'"), ("_in", "", "_out"),
    ("_prev", "", "_next"), ("_prev", "", ""), ("_old", "", "_new"), ("_old", "", ""), ("_t", "", "_t1"),
)  # fmt: skip


@dataclass(frozen=True)
class StepModel:
    """The file of the model with training information, and notes."""

    data: bytes
    notes: tuple[str, ...]


def is_step(path: Path) -> bool:
    """True for an ONNX file without training information in which names pair inputs with outputs. Raises BadInput for
    damage."""
    model = parse_model(read_file(path), path)
    return not model.training_info and bool(paired_by_name(model.graph))


def state_pairs(texts: Sequence[str]) -> dict[str, str]:
    """`w=w_next`, or a JSON file with an object of such pairs. Raises BadInput."""
    pairs: dict[str, str] = {}
    for text in texts:
        if text.endswith(".json"):
            pairs |= _pairs_in(Path(text))
            continue
        name, _, value = text.partition("=")
        if not name or not value:
            raise BadInput(f"--state {text}: no pair. Write an input and its next value, such as w=w_next.")
        pairs[name] = value
    return pairs


def _pairs_in(path: Path) -> dict[str, str]:
    try:
        found = json.loads(read_file(path))
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}.") from error
    found = found.get("state", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BadInput(f'{path}: no pairs. Write an object such as {{"w": "w_next"}}.')
    return found


def paired_by_name(graph: GraphProto) -> dict[str, str]:
    """Inputs and outputs of one type whose names follow a rule."""
    outputs = {o.name: o for o in graph.output}
    pairs: dict[str, str] = {}
    for value in graph.input:
        for end, before, behind in _RULES:
            if value.name.endswith(end):
                name = f"{before}{value.name[: len(value.name) - len(end)]}{behind}"
                if name in outputs and name != value.name and _same(value, outputs[name]):
                    pairs.setdefault(value.name, name)
    return pairs


def _same(one: ValueInfoProto, other: ValueInfoProto) -> bool:
    first, second = one.type.tensor_type, other.type.tensor_type
    shapes = [[d.dim_value or d.dim_param for d in t.shape.dim] for t in (first, second)]
    return first.elem_type == second.elem_type and (shapes[0] == shapes[1] or not second.HasField("shape"))


def step_model(path: Path, pairs: Mapping[str, str], values: Mapping[str, np.ndarray]) -> StepModel:
    """The step in ONNX file `path`, with first `values` of its state. `pairs` are the state's inputs with the outputs
    that replace them. Raises BadInput with all findings."""
    model = parse_model(read_file(path), path)
    load_external_data_for_model(model, str(path.parent))
    named = not pairs
    pairs = dict(pairs) or paired_by_name(model.graph)
    findings = list(_findings(model, path, pairs, values))
    if findings:
        raise BadInput("\n".join(findings))
    notes = [f"a whole training step: its state is {listed(pairs)}, by name."] if named else []
    notes += _move_state(model, pairs, values)
    _split(model, pairs)
    return StepModel(model.SerializeToString(deterministic=True), tuple(notes))


def _findings(
    model: ModelProto, path: Path, pairs: Mapping[str, str], values: Mapping[str, np.ndarray]
) -> Iterator[str]:
    inputs, outputs = {i.name: i for i in model.graph.input}, {o.name: o for o in model.graph.output}
    if model.training_info:
        yield f"--state: {path} carries training information already. Leave the option out."
        return
    if not pairs:
        yield (
            f"{path}: no names pair its inputs with outputs. Say which output is the next value of which input, such "
            f"as --state w=w_next. Inputs: {listed(inputs)}; outputs: {listed(outputs)}."
        )
        return  # which values are of states is not known
    for name, value in pairs.items():
        for kind, found, there in (("input", name, inputs), ("output", value, outputs)):
            if found not in there:
                cure = did_you_mean(found, there) or f" There are: {listed(there)}."
                yield f"--state {name}={value}: {path}: no such {kind} '{found}'.{cure}"
        if name in inputs and not _is_fixed(inputs[name]):
            yield f"--state {name}={value}: {path}: '{name}' has no fixed shape, which a state must have in the model."
    twice = sorted({v for v in pairs.values() if list(pairs.values()).count(v) > 1})
    if twice:
        yield f"--state: {listed(twice)}: the next value of several inputs. Return it once for each."
    if not set(outputs) - set(pairs.values()):
        yield f"{path}: all outputs are next values of states. Return the loss, too."
    for name, array in values.items():
        if name not in pairs:
            cure = did_you_mean(name, pairs) or f" There are: {listed(pairs)}."
            yield f"--state-values: '{name}' is no state of {path}.{cure}"
        elif name in inputs and _is_fixed(inputs[name]) and array.shape != _shape(inputs[name]):
            expected = list(_shape(inputs[name]))
            yield f"--state-values: '{name}' has shape {list(array.shape)}, but {path} takes {expected}."


def _shape(value: ValueInfoProto) -> tuple[int, ...]:
    return tuple(int(d.dim_value) for d in value.type.tensor_type.shape.dim)


def _is_fixed(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(
        d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim
    )


def _move_state(
    model: ModelProto, pairs: Mapping[str, str], values: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Makes initializers of the inputs that are state; a note on those without a value."""
    stored = {t.name for t in model.graph.initializer}
    empty = []
    for value in [i for i in model.graph.input if i.name in pairs]:
        model.graph.input.remove(value)
        if value.name in stored and value.name not in values:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = values.get(value.name)
        if array is None:
            empty.append(value.name)
            array = np.zeros(_shape(value), dtype)
        for old in [t for t in model.graph.initializer if t.name == value.name]:
            model.graph.initializer.remove(old)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array).astype(dtype), value.name))
    if empty:
        return iter(
            (
                f"{listed(empty)}: begin as zeros. Give first values with --state-values FILE.npz, or set them later.",
            )
        )
    return iter(())


def _split(model: ModelProto, pairs: Mapping[str, str]) -> None:
    """Makes an algorithm of what only leads to next values of states."""
    graph = model.graph
    following = set(pairs.values())
    returned = [o for o in graph.output if o.name not in following]
    needed, front = {o.name for o in returned}, set[int]()
    for i in reversed(range(len(graph.node))):
        if not needed.isdisjoint(graph.node[i].output):
            front.add(i)
            needed |= _read(graph.node[i])
    info = model.training_info.add()
    algorithm = info.algorithm
    algorithm.name = "step"
    nodes = list(graph.node)
    algorithm.node.extend(n for i, n in enumerate(nodes) if i not in front)
    made = {n for node in algorithm.node for n in node.output}
    read = {n for node in algorithm.node for n in _read(node)} | set(pairs.values())
    stored = {t.name for t in graph.initializer}
    own = [i for i in graph.input if i.name not in needed and i.name not in stored]
    algorithm.input.extend(i for i in own if i.name in read)
    known = {o.name for o in returned}
    for i, (name, value) in enumerate(pairs.items()):
        result = next(o for o in graph.output if o.name == value)
        if value not in made and value not in known:  # a value of the inference graph, or a state itself
            copy = helper.make_node("Identity", [value], [f"{value}/next"], name=f"next value {i}")
            algorithm.node.append(copy)
            result = ValueInfoProto.FromString(result.SerializeToString())
            result.name = f"{value}/next"
        if result.name not in known:
            algorithm.output.append(result)
        info.update_binding.add(key=name, value=result.name)
    del graph.node[:], graph.output[:]
    graph.node.extend(n for i, n in enumerate(nodes) if i in front)
    graph.output.extend(returned)
    for value in own:
        graph.input.remove(value)


def _read(node: NodeProto) -> set[str]:
    """The names that a node reads, in its subgraphs too."""
    found = set(node.input) - {""}
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = {n for n2 in graph.node for n in _read(n2)} | {o.name for o in graph.output}
            found |= inner - {n for n2 in graph.node for n in n2.output} - {i.name for i in graph.input}
    return found
