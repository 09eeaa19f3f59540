"""Low-rank adapters: y = f(x, W) becomes y + s (x A) B, where only A [in, rank] and B [rank, out] train.

Layers are found by the names of their weights, which may be float or quantised: a weight is followed through
DequantizeLinear, Cast, Transpose and Identity to the MatMul, Gemm, Gather or convolution that reads it. A begins
uniform as in peft, B with zeros: the adapted model computes what the model did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from zlib import crc32

import numpy as np

from minbuild.authoring.recipe import LoraOptions, Source
from minbuild.errors import BadInput
from minbuild.frontend.onnx.quantization_pairs import DYNAMIC_FAKE_QUANT
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import Checkpoint, Graph, Node, TrainingArtifacts
from minbuild.options.did_you_mean import did_you_mean, listed

A, B = ".lora_A", ".lora_B"
ADAPTER = re.compile(r"\.lora_(embedding_)?[AB](\.|$)")  # in names, peft's too
_THROUGH = ("Cast", "Dequantize", "DequantizeLinear", "FakeQuant", "Identity", "Transpose")
_DEQUANTISING = ("Cast", "Dequantize", "DequantizeLinear")
_PACKED = ("MatMulNBits", "MatMulBnb4")


@dataclass(frozen=True)
class _Layer:
    """A node that multiplies by a weight, the value `x` that its adapter reads, and shapes of A and B."""

    weight: str
    node: Node
    x: str
    a: tuple[int, ...]
    b: tuple[int, ...]


def with_adapters(model: Source, options: LoraOptions) -> tuple[Source, tuple[str, ...]]:
    """The model with an adapter beside each layer whose weight's name matches, and the adapters' names. Raises BadInput
    with everything that is wrong."""
    if not options.weights:
        return model, ()
    layers = list(_layers(model.graph, options.rank))
    names = list(dict.fromkeys(layer.weight for layer in layers))
    findings = list(_findings(options, model.graph, names))
    if findings:
        raise BadInput("\n".join(findings))
    chosen = [layer for layer in layers if _matches(layer.weight, options.weights)]
    scale = (options.rank if options.alpha is None else options.alpha) / options.rank
    arrays: dict[str, np.ndarray] = {}
    adapted: dict[int, list[Node]] = {}
    for layer in chosen:
        title = adapter_title(layer.weight)
        arrays |= _first_values(title, layer, model.graph)
        adapted[id(layer.node)] = list(_with_adapter(layer, title, scale, model.opset))
    if taken := sorted(set(arrays) & _values(model.graph)):
        raise BadInput(
            f"--lora: {model.path}: it has adapters already: {listed(taken)}. Choose them with --train."
        )
    nodes = tuple(n for node in model.graph.nodes for n in adapted.get(id(node), (node,)))
    graph = replace(model.graph, nodes=nodes, initializers={**model.graph.initializers, **arrays})
    return replace(model, graph=graph), tuple(arrays)


def adapter_title(weight: str) -> str:
    """The text that the names of a weight's adapters begin with."""
    return weight.removesuffix(".weight")


def adapters_of(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with low-rank adapters only: those made here, and peft's."""
    return Checkpoint(tuple(p for p in checkpoint.parameters if ADAPTER.search(p.name)))


def _values(graph: Graph) -> set[str]:
    return {*graph.inputs, *graph.initializers, *(n for node in graph.nodes for n in node.outputs)}


def _findings(options: LoraOptions, graph: Graph, names: Sequence[str]) -> Iterator[str]:
    for pattern in options.weights:
        if not any(_matches(name, (pattern,)) for name in names):
            if pattern in graph.initializers:
                cure = (
                    " An adapter goes beside a MatMul, Gemm, Gather or ungrouped convolution by one weight."
                )
            else:
                cure = (
                    did_you_mean(pattern, [*names, *map(adapter_title, names)])
                    or f" There are: {listed(names) or 'none'}."
                )
            yield f"--lora {pattern}: {graph.source}: no layer has such a weight.{cure}"
    if options.rank < 1:
        yield f"--lora-rank {options.rank}: a rank is at least 1."


def _matches(name: str, patterns: Sequence[str]) -> bool:
    titles = name, adapter_title(name)
    return any(title == p or fnmatchcase(title, p) for title in titles for p in patterns)


def _layers(graph: Graph, rank: int) -> Iterator[_Layer]:
    """The layers that an adapter can stand beside."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    for node in graph.nodes:
        at = 0 if node.op_type == "Gather" else 1
        if len(node.inputs) <= at:
            continue
        packed = node.op_type in _PACKED and bool(node.domain)
        weight, shape = _root(node.inputs[at], graph, makers, packed)
        if not weight:
            continue
        x = _unquantised(node.inputs[1 - at], makers)
        if packed:
            size = int(node.attributes["K"]), int(node.attributes["N"])
        elif node.op_type == "Conv" and node.attributes.get("group", 1) == 1 and len(shape) > 2:
            ones = (1,) * (len(shape) - 2)
            yield _Layer(weight, node, x, (rank, *shape[1:]), (shape[0], rank, *ones))
            continue
        elif len(shape) != 2 or node.domain:
            continue
        elif node.op_type == "Gemm" and not node.attributes.get("transA", 0):
            size = (shape[1], shape[0]) if node.attributes.get("transB", 0) else (shape[0], shape[1])
        elif node.op_type == "MatMul" or (node.op_type == "Gather" and not node.attributes.get("axis", 0)):
            size = shape[0], shape[1]
        else:
            continue
        yield _Layer(weight, node, x, (size[0], rank), (rank, size[1]))


def _unquantised(name: str, makers: Mapping[str, Node]) -> str:
    """The value before its dynamic quantisation: an adapter beside integer products reads floats, as they do, and no
    rounded copy is kept for its gradient."""
    made = makers.get(name)
    return made.inputs[0] if made is not None and made.op_type == DYNAMIC_FAKE_QUANT else name


def _root(
    name: str, graph: Graph, makers: dict[str, Node], packed: bool = False
) -> tuple[str, tuple[int, ...]]:
    """The initializer that a value is, but for its type and layout, and the value's shape; "" where it is none, or has
    integers that are no quantised numbers. Those of a `packed` weight are, as its layer reads it."""
    turns: list[tuple[int, ...]] = []
    stored: tuple[int, ...] = ()  # of weights whose bytes do not show it
    dequantised = packed
    while name in makers and makers[name].op_type in _THROUGH:
        node = makers[name]
        if node.op_type == "Transpose":
            turns.append(tuple(node.attributes.get("perm", ())))
        elif node.op_type == "Dequantize":
            stored = tuple(node.attributes["shape"])
        dequantised |= node.op_type in _DEQUANTISING
        name = node.inputs[0]
    if name not in graph.initializers or (_integers(graph.initializers[name]) and not dequantised):
        return "", ()
    shape = stored or tuple(np.asarray(graph.initializers[name]).shape)
    for perm in reversed(turns):
        shape = tuple(shape[i] for i in perm) if perm else shape[::-1]
    return name, shape


def _integers(array: np.ndarray) -> bool:
    return np.asarray(array).dtype.kind in "biu"


def _first_values(title: str, layer: _Layer, graph: Graph) -> dict[str, np.ndarray]:
    """A uniform within 1 / sqrt(inputs), as Kaiming's with peft's slope; B zeros."""
    fan = int(np.prod(layer.a[1:])) if layer.node.op_type == "Conv" else layer.a[0]
    random = np.random.default_rng(crc32(title.encode()))
    bound = 1 / np.sqrt(fan)
    stored = np.asarray(graph.initializers[layer.weight]).dtype
    dtype = stored if stored.kind == "f" and stored.itemsize > 2 else np.dtype(np.float32)
    return {
        title + A: random.uniform(-bound, bound, layer.a).astype(dtype),
        title + B: np.zeros(layer.b, dtype),
    }


def _with_adapter(layer: _Layer, title: str, scale: float, opset: int) -> Iterator[Node]:
    """The node, its adapter behind it, and their sum under the node's name."""
    node, output = layer.node, layer.node.outputs[0]
    base, low, update = f"{output}/base", f"{output}/lora_A", f"{output}/lora_B"

    def made(op_type: str, inputs: tuple[str, ...], result: str, **attributes: object) -> Node:
        return Node(
            op_type,
            "",
            opset,
            name=f"{result}/{op_type}",
            inputs=inputs,
            outputs=(result,),
            attributes=attributes,
        )

    yield replace(node, outputs=(base, *node.outputs[1:]))
    if node.op_type == "Conv":
        yield made("Conv", (layer.x, title + A), low, **dict(node.attributes))
    elif node.op_type == "Gather":
        yield made("Gather", (title + A, layer.x), low)
    else:
        yield made("MatMul", (layer.x, title + A), low)
    if scale != 1:
        yield made("Constant", (), f"{low}/scale", value=np.array(scale, np.float32))
        yield made("Mul", (low, f"{low}/scale"), f"{low}/scaled")
        low = f"{low}/scaled"
    yield made("Conv" if node.op_type == "Conv" else "MatMul", (low, title + B), update)
    yield made("Add", (base, update), output)


# ------------------------------------------------------------------------------------------------------ Merging


def merged_adapters(
    artifacts: TrainingArtifacts, trained: Checkpoint
) -> tuple[TrainingArtifacts, tuple[str, ...]]:
    """The artifacts with adapters of the evaluation graph added to the weights, as `trained` has them; and notes on
    those that stay, because their weight is quantised or scaled."""
    graph = artifacts.evaluation
    if graph is None:
        return artifacts, ()
    values = {
        p.name: np.asarray(p.data)
        for p in (*artifacts.checkpoint.parameters, *trained.parameters)
        if p.data is not None
    }
    merging = _Merging(graph, values)
    for node in graph.nodes:
        if node.op_type == "Add":
            merging.try_(node)
    if not merging.weights and not merging.kept:
        return artifacts, ()
    nodes = tuple(merging.nodes())
    read = {n for node in nodes for n in names_read(node)} | set(graph.outputs)
    constants = {n: a for n, a in {**graph.initializers, **merging.weights}.items() if n in read}
    inputs = {n: t for n, t in graph.inputs.items() if n in read or n not in values}
    evaluation = replace(graph, nodes=nodes, inputs=inputs, initializers=constants)
    notes = tuple(
        f"{name}: stays beside its layer, whose weight is not float. An adapter cannot be added to quantised numbers."
        for name in merging.kept
    )
    return replace(artifacts, evaluation=evaluation), notes


class _Merging:
    """Adapters being added to the weights of an evaluation graph."""

    def __init__(self, graph: Graph, values: dict[str, np.ndarray]) -> None:
        self.graph, self.parameters = graph, values
        self.makers = {name: node for node in graph.nodes for name in node.outputs if name}
        self.arrays = {**{n: np.asarray(a) for n, a in graph.initializers.items()}, **values}
        self.weights: dict[str, np.ndarray] = {}
        self.replaced: dict[int, Node | None] = {}
        self.kept: list[str] = []

    def nodes(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            found = self.replaced.get(id(node), node)
            if found is not None:
                yield found

    def try_(self, sum_: Node) -> None:
        """Merges the adapter that a node adds to its layer's result, if it is one."""
        layer, last = (self.makers.get(n) for n in sum_.inputs[:2])
        if layer is None or last is None or len(last.inputs) < 2 or not last.inputs[1].endswith(B):
            return
        title = last.inputs[1].removesuffix(B)
        scaled = self.makers.get(last.inputs[0])
        scale, first = 1.0, scaled
        if scaled is not None and scaled.op_type == "Mul":
            scale = float(self.content(scaled.inputs[1]))
            first = self.makers.get(scaled.inputs[0])
        if first is None or title + A not in first.inputs:
            return
        name = layer.inputs[0 if layer.op_type == "Gather" else 1]
        weight = self.float_weight(name)
        if weight is None or layer.domain:
            self.kept.append(title)
            return
        own = f"{title}.merged"
        update = scale * _product(self.arrays[title + A], self.arrays[title + B], layer.op_type)
        update = update.T if layer.attributes.get("transB", 0) else update
        wide = weight.astype(np.float64) + update / layer.attributes.get("alpha", 1.0)
        self.weights[own] = wide.astype(weight.dtype)
        inputs = tuple(own if n == name else n for n in layer.inputs)
        self.replaced[id(layer)] = replace(
            layer, inputs=inputs, outputs=(sum_.outputs[0], *layer.outputs[1:])
        )
        for gone in (first, last, sum_, *([scaled] if scaled is not first else [])):
            if gone is not None:
                self.replaced[id(gone)] = None

    def float_weight(self, name: str) -> np.ndarray | None:
        """A weight as its layer reads it; None where it is not float or computed otherwise."""
        maker = self.makers.get(name)
        if maker is None:
            found = self.arrays.get(name)
            return found if found is not None and found.dtype.kind == "f" else None
        if maker.op_type not in ("Identity", "Transpose"):
            return None
        source = self.float_weight(maker.inputs[0])
        perm = (
            maker.attributes.get("perm")
            if maker.op_type == "Transpose"
            else range(0 if source is None else source.ndim)
        )
        return None if source is None else source.transpose(perm)

    def content(self, name: str) -> np.ndarray:
        maker = self.makers.get(name)
        return np.asarray(self.arrays[name] if maker is None else maker.attributes["value"])


def _product(a: np.ndarray, b: np.ndarray, op_type: str) -> np.ndarray:
    """A B in double precision: the update of the weight."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if op_type == "Conv":
        return np.einsum("or,ri...->oi...", b.reshape(b.shape[:2]), a)
    return a @ b
