"""Parameters that PyTorch's exporter folded into constants, as parameters again.

The exporter computes what depends on parameters alone, keeps one of several equal parameters, and leaves out additions
of zeros. Its metadata name the values that a constant was computed of, which are named after what computed them: `exp`
of `neg` and `s` is exp(-s). Where that determines an expression, it is put in place of the constant; parameters that
the file does not hold any longer get the values that make the expression give the constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minbuild.authoring.recipe import Source
from minbuild.authoring.repeated_constants import repeated_part
from minbuild.authoring.weight_norms import NormAxes, dims_note, norm_axes, weight_norm_pair
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Node
from minbuild.options.did_you_mean import listed

_Function = Callable[[np.ndarray], np.ndarray]
_Numbers = Callable[[np.ndarray, Any], np.ndarray]
# Names of PyTorch's functions: the operator, what it computes, and the inverse.
_INVERTIBLE: Mapping[str, tuple[str, _Function, _Function]] = {
    "atan": ("Atan", np.arctan, np.tan),
    "exp": ("Exp", np.exp, np.log),
    "log": ("Log", np.log, np.exp),
    "neg": ("Neg", np.negative, np.negative),
    "reciprocal": ("Reciprocal", np.reciprocal, np.reciprocal),
    "sigmoid": ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), lambda y: np.log(y) - np.log1p(-y)),
    "softplus": ("Softplus", lambda x: np.logaddexp(0, x), lambda y: y + np.log(-np.expm1(-y))),
    "sqrt": ("Sqrt", np.sqrt, np.square),
    "tanh": ("Tanh", np.tanh, np.arctanh),
}
# By the names of functions of a parameter x and a number: operators, True where the number comes first, the number that
# makes y of x, and y.
_LESS = ("Sub", True, lambda x, y: y + x, lambda x, number: number - x)
_MINUS = ("Sub", False, lambda x, y: x - y, lambda x, number: x - number)
_OF_NUMBERS: Mapping[str, Sequence[tuple[str, bool, _Numbers, _Numbers]]] = {
    "add": (("Add", False, lambda x, y: y - x, lambda x, number: x + number),),
    "div": (
        ("Div", False, lambda x, y: x / y, lambda x, number: x / number),
        ("Div", True, lambda x, y: y * x, lambda x, number: number / x),
    ),
    "mul": (("Mul", False, lambda x, y: y / x, lambda x, number: x * number),),
    "rsub": (_LESS,),
    "sub": (_LESS, _MINUS),
}
_LAYOUT = frozenset(
    ("alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "squeeze", "t", "transpose")
) | {"unflatten", "unsqueeze", "view"}
_CONSTANT = re.compile(r"(val|scalar_tensor_default)(_\d+)?")
_INSIDE_SOFTPLUS = re.compile(
    r"(beta|threshold|tmp|self_scaled|softplus)(_\d+)?(_cast)?"
)  # with the default beta
_NUMBERED = re.compile(r"_\d+$")
# Names that modules give to the inputs of operators.
_NORM = {1: "weight", 2: "bias"}
_LEAVES = dict.fromkeys(
    ("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"), _NORM
)
_LEAVES |= {"BatchNormalization": {**_NORM, 3: "running_mean", 4: "running_var"}, "MatMul": {1: "weight"}}
_WITH_BIAS = ("Conv", "ConvTranspose", "Gemm")
_CLOSE = 1e-5  # relative
_DIFFERENT = 1e-3  # of the largest element: the least range of elements that tell `n - x` from `x - n`


def with_unfolded_constants(model: Source) -> tuple[Source, tuple[str, ...]]:
    """The model with parameters in place of constants, as far as the exporter's metadata name them, and a note."""
    if not model.metadata.parameters:
        return model, ()
    unfolding = _Unfolding(model)
    unfolding.split_equal_ones()
    unfolding.add_zero_biases()
    for name in model.metadata.folded:
        unfolding.rebuild(name)
    return unfolding.result()


@dataclass
class _Unfolding:
    model: Source
    made: list[str] = field(default_factory=list)  # parameters there are again
    lengths: list[tuple[str, NormAxes]] = field(default_factory=list)  # those whose scale is not in the file
    tables: list[str] = field(default_factory=list)  # those of whose rows the file has the ones that are read

    def __post_init__(self) -> None:
        graph, metadata = self.model.graph, self.model.metadata
        self.opset = self.model.opset
        self.nodes = list(graph.nodes)
        self.arrays = {n: np.asarray(a) for n, a in graph.initializers.items()}
        self.lost, self.folded = list(metadata.lost), dict(metadata.folded)
        self.start: list[Node] = []  # those that compute the constants
        self.scopes = dict(metadata.scopes)
        self.taken = {*graph.inputs, *(n for node in graph.nodes for n in node.outputs)}

    def result(self) -> tuple[Source, tuple[str, ...]]:
        if not self.made:
            return self.model, ()
        nodes = (*self.start, *self.nodes)
        read = {n for node in nodes for n in names_read(node)} | set(self.model.graph.outputs)
        arrays = {n: a for n, a in self.arrays.items() if n in read}
        metadata = replace(self.model.metadata, lost=tuple(self.lost), folded=self.folded)
        graph = replace(self.model.graph, nodes=nodes, initializers=arrays)
        made = listed(dict.fromkeys(self.made))
        note = f"{made}: folded into constants by the exporter; here they are tensors of their own again."
        if self.lengths:
            note += f" {dims_note(self.lengths)}"
        if self.tables:
            note += f" {listed(self.tables)}: the rows that the model reads, which train as in the module."
        return replace(self.model, graph=graph, metadata=metadata), (note,)

    def add(self, name: str, array: np.ndarray) -> None:
        """One more parameter, or statistic, of the module."""
        self.arrays[name] = array
        self.made.append(name)
        if name in self.lost:
            self.lost.remove(name)

    # Equal parameters, of which the exporter keeps one.

    def split_equal_ones(self) -> None:
        """A copy for each submodule that has lost a parameter whose elements are all equal: those of others are
        equal because the module shares them."""
        for i, node in enumerate(self.nodes):
            scope = self.scope(node)
            inputs = list(node.inputs)
            for at, name in enumerate(inputs):
                if scope is None or name not in self.arrays:
                    continue
                own = self.lost_leaf(node, at, scope)
                if own and own != name and np.unique(self.arrays[name]).size == 1:
                    self.add(own, self.arrays[name].copy())
                    inputs[at] = own
            self.nodes[i] = replace(node, inputs=tuple(inputs))

    def lost_leaf(self, node: Node, at: int, scope: str) -> str:
        """The lost parameter, or statistic, that input `at` of a node was; "" where there is none."""
        before = f"{scope}." if scope else ""
        leaf = _LEAVES.get(node.op_type, {}).get(at)
        if node.op_type == "Add" and f"{before}bias" in self.lost:  # of a linear layer
            leaf = "bias"
        if leaf is not None:
            name = before + leaf
            buffers = [n for n in self.model.metadata.buffers if n not in self.arrays]
            return name if name in (*self.lost, *buffers) else ""
        if node.inputs[at].rpartition(".")[0] == scope:
            return ""
        own = [n for n in self.lost if n.rpartition(".")[0] == scope]
        known = {leaf for leaves in _LEAVES.values() for leaf in leaves.values()}
        others = [n for n in own if n.rpartition(".")[2] not in known]
        return others[0] if len(others) == 1 else ""

    def scope(self, node: Node) -> str | None:
        return self.scopes.get(node.outputs[0]) if node.outputs else None

    # Biases of zeros, which the exporter leaves out.

    def add_zero_biases(self) -> None:
        for i, node in enumerate(self.nodes):
            scope = self.scope(node)
            name = f"{scope}.bias" if scope else "bias"
            if scope is None or name not in self.lost or node.domain or len(node.inputs) < 2:
                continue
            weight = self.arrays.get(node.inputs[1])
            if weight is None:
                continue
            if node.op_type in _WITH_BIAS and not any(node.inputs[2:]):
                self.add(name, np.zeros(_outputs_of(node, weight), weight.dtype))
                self.nodes[i] = replace(node, inputs=(*node.inputs[:2], name))
            elif node.op_type == "MatMul" and weight.ndim == 2:
                self.add(name, np.zeros(weight.shape[1], weight.dtype))
                product = f"{node.outputs[0]}/product"
                self.scopes[product] = scope
                self.nodes[i] = replace(node, outputs=(product,))
                sum_ = self.node("Add", (product, name), node.outputs[0])
                self.nodes.insert(i + 1, sum_)

    # Constants that the exporter computed.

    def rebuild(self, name: str) -> None:
        """An expression in place of constant `name`, where its sources determine one."""
        constant, sources = self.arrays.get(name), self.folded[name]
        if constant is None or constant.dtype.kind != "f":
            return
        parameters = [n for n in sources if n in self.model.metadata.parameters]
        between = [n for n in sources if n not in parameters]
        if len(parameters) == 1:
            done = self.of_one(name, constant, parameters[0], between)
        else:
            done = len(parameters) == 2 and self.weight_norm(name, constant, parameters, between)
        if done:
            del self.arrays[name], self.folded[name]

    def of_one(self, name: str, constant: np.ndarray, source: str, between: Sequence[str]) -> bool:
        functions = _functions(name, between)
        if source in self.arrays:
            kept = self.of_kept(name, constant, source, functions or ())
            return kept or self.of_number(name, constant, source, between)
        if source in self.taken:
            return False
        if self.of_repeated(name, constant, source, between):
            return True
        if functions is None:
            return not between and constant.ndim == 2 and self.transposed(name, constant, source)
        array = constant.astype(np.float64)
        with np.errstate(all="ignore"):
            for function in functions:
                array = _INVERTIBLE[function][2](array)
            found = array.astype(constant.dtype)
            if not _close(_applied(functions, found.astype(np.float64)), constant):
                return False
        self.add(source, found)
        self.chain(functions, source, name)
        return True

    def of_kept(self, name: str, constant: np.ndarray, source: str, functions: Sequence[str]) -> bool:
        """The constant from a parameter that the file holds, too: nothing is guessed."""
        array = self.arrays[source]
        with np.errstate(all="ignore"):
            value = _applied(functions, array.astype(np.float64))
        if value.shape == constant.shape and _close(value, constant) and functions:
            self.chain(functions, source, name)
        elif value.ndim == 2 and value.T.shape == constant.shape and _close(value.T, constant):
            turned = f"{name}/transposed"
            self.start.append(self.node("Transpose", (source,), turned if functions else name, perm=(1, 0)))
            if functions:
                self.chain(functions, turned, name)
        else:
            return False
        self.made.append(source)
        return True

    def of_repeated(self, name: str, constant: np.ndarray, source: str, between: Sequence[str]) -> bool:
        """The constant from one that repeats, such as a class token for each sample, or from rows of a table."""
        stems = {_stem(n) for n in between if not _CONSTANT.fullmatch(n)}
        found = repeated_part(constant, _stem(name), stems, _LAYOUT)
        if found is None:
            return False
        self.add(source, found.parameter)
        if found.is_table:
            self.tables.append(source)
        value = source
        for i, (op_type, second) in enumerate(found.steps):
            result = name if i == len(found.steps) - 1 else f"{name}/{op_type}"
            if op_type == "Transpose":
                self.start.append(self.node(op_type, (value,), result, perm=second))
            else:
                array = {"value": np.array(second, np.int64)}
                self.start.append(self.node("Constant", (), f"{name}/second", **array))
                self.start.append(self.node(op_type, (value, f"{name}/second"), result))
            value = result
        return True

    def of_number(self, name: str, constant: np.ndarray, source: str, between: Sequence[str]) -> bool:
        """The constant from a parameter that the file holds, too, and a number, such as `1 - mix`. The number is the
        one that gives all elements."""
        x, y = (a.astype(np.float64) for a in (self.arrays[source], constant))
        scale = float(np.abs(x).max(initial=0))
        if _stem(name) not in _OF_NUMBERS or not all(map(_CONSTANT.fullmatch, between)):
            return False
        if x.shape != y.shape or np.ptp(x) <= _DIFFERENT * scale:
            return False
        for op_type, first, solve, compute in _OF_NUMBERS[_stem(name)]:
            with np.errstate(all="ignore"):
                exact = float(np.median(solve(x, y)))
                number = float(f"{exact:.5g}")
                number = number if abs(number - exact) <= _CLOSE * abs(exact) else exact
                found = compute(x, number)
            if np.isfinite(number) and np.allclose(found, y, rtol=0, atol=_CLOSE * np.abs(y).max()):
                value = {"value": np.array(number, constant.dtype)}
                self.start.append(self.node("Constant", (), f"{name}/number", **value))
                inputs = (f"{name}/number", source) if first else (source, f"{name}/number")
                self.start.append(self.node(op_type, inputs, name))
                self.made.append(source)
                return True
        return False

    def transposed(self, name: str, constant: np.ndarray, source: str) -> bool:
        """The weight of a linear layer that became the second operand of a MatMul."""
        readers = [node for node in self.nodes if name in names_read(node)]
        if not readers or any(n.op_type != "MatMul" or n.inputs[1] != name for n in readers):
            return False
        if any(f"{self.scope(n)}.weight".removeprefix(".") != source for n in readers):
            return False
        self.add(source, np.ascontiguousarray(constant.T))
        self.start.append(self.node("Transpose", (source,), name, perm=(1, 0)))
        return True

    def weight_norm(
        self, name: str, constant: np.ndarray, parameters: Sequence[str], between: Sequence[str]
    ) -> bool:
        """g v / |v|, as torch.nn.utils.weight_norm makes it."""
        pair = weight_norm_pair(parameters)
        functions = [n for n in between if not _CONSTANT.fullmatch(n)]
        stems = {_stem(n) for n in functions}
        turned = constant.ndim == 2 and _CONSTANT.fullmatch(name) is not None
        if (
            pair is None
            or constant.ndim < 2
            or ("mul" in stems) != turned
            or not (turned or _stem(name) == "mul")
        ):
            return False
        length = self.arrays.get(pair[0])
        found = norm_axes(constant.ndim, stems - {"mul"}, len(between) - len(functions), length)
        if found is None or pair[1] in self.arrays or not self.taken.isdisjoint(pair):
            return False
        end = name
        if turned:  # the second operand of a MatMul
            name, constant = f"{name}/transposed", np.ascontiguousarray(constant.T)
        lengths = np.sqrt(np.square(constant.astype(np.float64)).sum(axis=found.axes, keepdims=True))
        if not lengths.all() or (
            length is not None and not _close(np.abs(length.reshape(lengths.shape)), lengths)
        ):
            return False
        if length is None:
            lengths = lengths if found.dim is not None else lengths.reshape(())
            self.add(pair[0], lengths.astype(constant.dtype))
            self.lengths.append((pair[1], found))
            self.add(pair[1], constant.copy())
        else:
            self.made.append(pair[0])
            self.add(pair[1], constant * np.sign(length))
        inputs: tuple[str, ...] = (pair[1],)
        attributes: dict[str, Any] = {"axes": found.axes, "keepdims": 1}
        if self.opset >= 18:
            inputs, attributes = (pair[1], f"{name}/axes"), {"keepdims": 1}
            value = {"value": np.array(found.axes, np.int64)}
            self.start.append(self.node("Constant", (), f"{name}/axes", **value))
        self.start.append(self.node("ReduceL2", inputs, f"{name}/length", **attributes))
        self.start.append(self.node("Div", (pair[0], f"{name}/length"), f"{name}/ratio"))
        self.start.append(self.node("Mul", (pair[1], f"{name}/ratio"), name))
        if turned:
            self.start.append(self.node("Transpose", (name,), end, perm=(1, 0)))
        return True

    def chain(self, functions: Sequence[str], source: str, name: str) -> None:
        """Nodes for functions, the last to be applied first."""
        if not functions:
            self.start.append(self.node("Identity", (source,), name))
        for i, function in reversed(list(enumerate(functions))):
            result = f"{name}/{function}" if i else name
            self.start.append(self.node(_INVERTIBLE[function][0], (source,), result))
            source = result

    def node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: object) -> Node:
        return Node(
            op_type,
            "",
            self.opset,
            name=f"{output}/{op_type}",
            inputs=tuple(inputs),
            outputs=(output,),
            attributes=attributes,
        )


def _functions(name: str, between: Sequence[str]) -> tuple[str, ...] | None:
    """The invertible functions that made constant `name`, the last one first; None where the names do not show it."""
    names = (name, *between)
    if _stem(name) == "softplus":
        names = (name, *(n for n in between if not _INSIDE_SOFTPLUS.fullmatch(n)))
    stems = [_stem(n) for n in names if not _CONSTANT.fullmatch(n)]
    functions = [s for s in stems if s in _INVERTIBLE]
    layout = [s for s in stems if s in _LAYOUT]
    if len(functions) + len(layout) < len(stems) or not stems:
        return None
    if any(_CONSTANT.fullmatch(n) for n in names) and not layout:
        return None  # a function of something else, too
    if len(functions) > 2 or (len(functions) == 2 and _stem(name) not in functions):
        return None  # in an order that is not told
    return tuple(functions)


def _stem(name: str) -> str:
    return _NUMBERED.sub("", name)


def _applied(functions: Sequence[str], x: np.ndarray) -> np.ndarray:
    for function in reversed(functions):
        x = _INVERTIBLE[function][1](x)
    return x


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(found, expected, rtol=_CLOSE, atol=0))


def _outputs_of(node: Node, weight: np.ndarray) -> int:
    """The number of outputs of a layer."""
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1] * node.attributes.get("group", 1))
    turned = node.op_type == "Gemm" and not node.attributes.get("transB", 0)
    return int(weight.shape[1 if turned else 0])
