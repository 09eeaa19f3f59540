"""Expressions of parameters in place of the constants that the exporter computed of them.

Its metadata name the values that a constant was computed of, which are named after what computed them: `exp` of `neg`
and `s` is exp(-s). Where that determines an expression, it is put in place of the constant; parameters that the file
does not hold any longer get the values that make the expression give the constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minbuild.authoring.folded_constants.lost_parameters import add_zero_biases, split_equal_parameters
from minbuild.authoring.folded_constants.repeated_constants import repeated_part
from minbuild.authoring.folded_constants.torch_functions import (
    LAYOUT,
    applied,
    functions_of,
    inverted,
    is_close,
    is_number,
    number_beside,
    operator_of,
    stem,
)
from minbuild.authoring.folded_constants.unfolded_graph import UnfoldedGraph
from minbuild.authoring.folded_constants.weight_norms import norm_axes, weight_norm_pair
from minbuild.authoring.recipe import Source
from minbuild.frontend.onnx.subgraphs import names_read


def with_unfolded_constants(model: Source) -> tuple[Source, tuple[str, ...]]:
    """The model with parameters in place of constants, as far as the exporter's metadata name them, and a note."""
    if not model.metadata.parameters:
        return model, ()
    graph = UnfoldedGraph(model)
    split_equal_parameters(graph)
    add_zero_biases(graph)
    for name in model.metadata.folded:
        _rebuild(graph, name)
    return graph.result()


def _rebuild(graph: UnfoldedGraph, name: str) -> None:
    """An expression in place of constant `name`, where its sources determine one."""
    constant, sources = graph.arrays.get(name), graph.folded[name]
    if constant is None or constant.dtype.kind != "f":
        return
    parameters = [n for n in sources if n in graph.model.metadata.parameters]
    between = [n for n in sources if n not in parameters]
    if len(parameters) == 1:
        done = _of_one(graph, name, constant, parameters[0], between)
    else:
        done = len(parameters) == 2 and _weight_norm(graph, name, constant, parameters, between)
    if done:
        del graph.arrays[name], graph.folded[name]


def _of_one(
    graph: UnfoldedGraph, name: str, constant: np.ndarray, source: str, between: Sequence[str]
) -> bool:
    functions = functions_of(name, between)
    if source in graph.arrays:
        kept = _of_kept(graph, name, constant, source, functions or ())
        return kept or _of_number(graph, name, constant, source, between)
    if source in graph.taken:
        return False
    if _of_repeated(graph, name, constant, source, between):
        return True
    if functions is None:
        return not between and constant.ndim == 2 and _transposed(graph, name, constant, source)
    with np.errstate(all="ignore"):
        found = inverted(functions, constant.astype(np.float64)).astype(constant.dtype)
        if not is_close(applied(functions, found.astype(np.float64)), constant):
            return False
    graph.add(source, found)
    _chain(graph, functions, source, name)
    return True


def _of_kept(
    graph: UnfoldedGraph, name: str, constant: np.ndarray, source: str, functions: Sequence[str]
) -> bool:
    """The constant from a parameter that the file holds, too: nothing is guessed."""
    array = graph.arrays[source]
    with np.errstate(all="ignore"):
        value = applied(functions, array.astype(np.float64))
    if value.shape == constant.shape and is_close(value, constant) and functions:
        _chain(graph, functions, source, name)
    elif value.ndim == 2 and value.T.shape == constant.shape and is_close(value.T, constant):
        turned = f"{name}/transposed"
        graph.start.append(graph.node("Transpose", (source,), turned if functions else name, perm=(1, 0)))
        if functions:
            _chain(graph, functions, turned, name)
    else:
        return False
    graph.made.append(source)
    return True


def _of_repeated(
    graph: UnfoldedGraph, name: str, constant: np.ndarray, source: str, between: Sequence[str]
) -> bool:
    """The constant from one that repeats, such as a class token for each sample, or from rows of a table."""
    stems = {stem(n) for n in between if not is_number(n)}
    found = repeated_part(constant, stem(name), stems, LAYOUT)
    if found is None:
        return False
    graph.add(source, found.parameter)
    if found.is_table:
        graph.tables.append(source)
    value = source
    for i, (op_type, second) in enumerate(found.steps):
        result = name if i == len(found.steps) - 1 else f"{name}/{op_type}"
        if op_type == "Transpose":
            graph.start.append(graph.node(op_type, (value,), result, perm=second))
        else:
            array = {"value": np.array(second, np.int64)}
            graph.start.append(graph.node("Constant", (), f"{name}/second", **array))
            graph.start.append(graph.node(op_type, (value, f"{name}/second"), result))
        value = result
    return True


def _of_number(
    graph: UnfoldedGraph, name: str, constant: np.ndarray, source: str, between: Sequence[str]
) -> bool:
    """The constant from a parameter that the file holds, too, and a number, such as `1 - mix`. The number is the
    one that gives all elements."""
    if not all(map(is_number, between)):
        return False
    x, y = (a.astype(np.float64) for a in (graph.arrays[source], constant))
    found = number_beside(stem(name), x, y)
    if found is None:
        return False
    op_type, first, number = found
    value = {"value": np.array(number, constant.dtype)}
    graph.start.append(graph.node("Constant", (), f"{name}/number", **value))
    inputs = (f"{name}/number", source) if first else (source, f"{name}/number")
    graph.start.append(graph.node(op_type, inputs, name))
    graph.made.append(source)
    return True


def _transposed(graph: UnfoldedGraph, name: str, constant: np.ndarray, source: str) -> bool:
    """The weight of a linear layer that became the second operand of a MatMul."""
    readers = [node for node in graph.nodes if name in names_read(node)]
    if not readers or any(n.op_type != "MatMul" or n.inputs[1] != name for n in readers):
        return False
    if any(f"{graph.scope(n)}.weight".removeprefix(".") != source for n in readers):
        return False
    graph.add(source, np.ascontiguousarray(constant.T))
    graph.start.append(graph.node("Transpose", (source,), name, perm=(1, 0)))
    return True


def _weight_norm(
    graph: UnfoldedGraph, name: str, constant: np.ndarray, parameters: Sequence[str], between: Sequence[str]
) -> bool:
    """g v / |v|, as torch.nn.utils.weight_norm makes it."""
    pair = weight_norm_pair(parameters)
    functions = [n for n in between if not is_number(n)]
    stems = {stem(n) for n in functions}
    turned = constant.ndim == 2 and is_number(name)
    if pair is None or constant.ndim < 2 or ("mul" in stems) != turned or not (turned or stem(name) == "mul"):
        return False
    length = graph.arrays.get(pair[0])
    found = norm_axes(constant.ndim, stems - {"mul"}, len(between) - len(functions), length)
    if found is None or pair[1] in graph.arrays or not graph.taken.isdisjoint(pair):
        return False
    end = name
    if turned:  # the second operand of a MatMul
        name, constant = f"{name}/transposed", np.ascontiguousarray(constant.T)
    lengths = np.sqrt(np.square(constant.astype(np.float64)).sum(axis=found.axes, keepdims=True))
    if not lengths.all() or (
        length is not None and not is_close(np.abs(length.reshape(lengths.shape)), lengths)
    ):
        return False
    if length is None:
        lengths = lengths if found.dim is not None else lengths.reshape(())
        graph.add(pair[0], lengths.astype(constant.dtype))
        graph.lengths.append((pair[1], found))
        graph.add(pair[1], constant.copy())
    else:
        graph.made.append(pair[0])
        graph.add(pair[1], constant * np.sign(length))
    inputs: tuple[str, ...] = (pair[1],)
    attributes: dict[str, Any] = {"axes": found.axes, "keepdims": 1}
    if graph.opset >= 18:
        inputs, attributes = (pair[1], f"{name}/axes"), {"keepdims": 1}
        value = {"value": np.array(found.axes, np.int64)}
        graph.start.append(graph.node("Constant", (), f"{name}/axes", **value))
    graph.start.append(graph.node("ReduceL2", inputs, f"{name}/length", **attributes))
    graph.start.append(graph.node("Div", (pair[0], f"{name}/length"), f"{name}/ratio"))
    graph.start.append(graph.node("Mul", (pair[1], f"{name}/ratio"), name))
    if turned:
        graph.start.append(graph.node("Transpose", (name,), end, perm=(1, 0)))
    return True


def _chain(graph: UnfoldedGraph, functions: Sequence[str], source: str, name: str) -> None:
    """Nodes for functions, the last to be applied first."""
    if not functions:
        graph.start.append(graph.node("Identity", (source,), name))
    for i, function in reversed(list(enumerate(functions))):
        result = f"{name}/{function}" if i else name
        graph.start.append(graph.node(operator_of(function), (source,), result))
        source = result
