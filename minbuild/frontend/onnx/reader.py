"""ONNX files into Graphs. The only module that imports `onnx`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from minbuild.errors import BadInput, Unsupported
from minbuild.escape import printable
from minbuild.frontend.onnx.block_gathers import with_plain_gathers
from minbuild.frontend.onnx.embedding_bags import with_plain_bags
from minbuild.frontend.onnx.float8 import FLOAT8, with_float8
from minbuild.frontend.onnx.four_bits import FOUR_BITS, with_four_bits
from minbuild.frontend.onnx.local_functions import inline_functions
from minbuild.frontend.onnx.optional_elimination import without_optionals
from minbuild.frontend.onnx.schema_check import schema_violations
from minbuild.frontend.onnx.sequence_elimination import without_sequences
from minbuild.frontend.onnx.subgraphs import graphs_in, names_read
from minbuild.frontend.onnx.tensor_reader import TensorReader
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ir.dims import Dim, symbol

_WITHOUT_INDICES = 7  # the last opset whose MaxPool has one result
MOST_VERSIONS = 10_000  # of an opset: more is damage


def read_graph(data: bytes, path: Path) -> Graph:
    """The graph in `data`, the bytes of the ONNX file `path`. External tensors are mapped lazily and looked
    for beside `path`. Local functions are inlined. Raises BadInput for damage and Unsupported for what a
    Graph cannot hold, each with all findings."""
    return read_model(parse_model(data, path), path)


def read_model(model: ModelProto, path: Path) -> Graph:
    """The graph of a model that is called `path` in messages. Raises as `read_graph` does."""
    return _Reader(path, inline_functions(model, path)).graph()


def raised(model: ModelProto) -> ModelProto:
    """`model` in opset 8 if it is in opset 7, whose operators mean the same there: since 8, MaxPool has the indices
    that its gradient reads."""
    if opset_in(model) != _WITHOUT_INDICES:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for opset in copy.opset_import:
        opset.version += opset.domain in ("", "ai.onnx")
    return copy


def opset_in(model: ModelProto) -> int:
    """The version of ONNX's own operators that a model imports."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def array_of(tensor: TensorProto) -> np.ndarray:
    """The elements of a tensor that holds them itself."""
    return np.asarray(numpy_helper.to_array(tensor))


def read_nodes(model: ModelProto, source: Path) -> tuple[Node, ...]:
    """The nodes of a model's graph by themselves. Raises BadInput and Unsupported as `read_graph` does."""
    reader = _Reader(source, model)
    nodes = tuple(reader.node(n, i) for i, n in enumerate(model.graph.node))
    reader.raise_findings()
    return nodes


def parse_model(data: bytes, path: Path) -> ModelProto:
    """The protobuf in `data`, the bytes of the ONNX file `path`. Raises BadInput for damage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{path}: not a readable ONNX model ({len(data)} bytes): it is damaged or cut off. "
            "Generate or copy it again."
        ) from error
    if not model.HasField("graph") or not model.graph.node:
        raise BadInput(f"{path}: holds no graph with nodes; it is damaged, cut off, or not an ONNX model.")
    if model.ir_version > onnx.IR_VERSION:
        raise BadInput(
            f"{path}: its ONNX IR version is {model.ir_version}, but the installed onnx package "
            f"{onnx.__version__} reads up to {onnx.IR_VERSION}. Install a newer onnx."
        )
    return model


class _Reader:
    """One file. Damage goes to `damage`, what is understood but not supported to `missing`."""

    def __init__(self, path: Path, model: ModelProto) -> None:
        self.path, self.file, self.proto = path, path.name, model.graph
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in model.opset_import}
        self.damage: list[str] = [
            f"opset {version} of domain '{domain or 'ai.onnx'}' does not exist"
            for domain, version in self.opsets.items()
            if not 1 <= version <= MOST_VERSIONS
        ]
        self.missing: list[str] = []
        self.plain: dict[str, dict[str, Any]] = {}  # attributes by their text: equal ones are there once
        self.tensors = TensorReader(path, self.damage, self.missing)

    def graph(self) -> Graph:
        stored = {_interned(t.name): t for t in self.constants()}
        nodes = tuple(self.node(n, i) for i, n in enumerate(self.proto.node))
        outputs = tuple(_interned(o.name) for o in self.proto.output)
        read = {name for n in nodes for name in names_read(n)} | set(outputs)
        inputs, sequences = self.inputs(stored)
        if "" in outputs:
            self.damage.append("an output of the graph has no name")
        self.check_order(nodes, outputs, {*stored, *(i.name for i in self.proto.input)})
        halves = {n: t for n, t in stored.items() if n in read and t.data_type in FOUR_BITS}
        eights = {n: t for n, t in stored.items() if n in read and t.data_type in FLOAT8}
        initializers = {
            name: self.tensors.read(t, f"initializer '{name}'")
            for name, t in stored.items()
            if name in read and name not in halves and name not in eights
        }
        float8 = {name: self.tensors.float8(t, f"initializer '{name}'") for name, t in eights.items()}
        four_bits = {name: self.tensors.four_bits(t, f"initializer '{name}'") for name, t in halves.items()}
        self.raise_findings()
        graph = Graph(
            self.file,
            nodes=nodes,
            inputs=inputs,
            sequences=sequences,
            outputs=outputs,
            initializers=initializers,
        )
        findings: list[str] = []
        graph = with_four_bits(*with_plain_gathers(graph, four_bits), findings)
        graph = with_float8(graph, float8, findings)
        self.missing += [f"{self.file}: {finding}." for finding in findings]
        self.raise_findings()
        return without_sequences(without_optionals(with_plain_bags(graph)))

    def constants(self) -> list[TensorProto]:
        """The initializers of the graph that is read, sparse ones in dense form."""
        return [*self.proto.initializer, *(self.tensors.dense(s) for s in self.proto.sparse_initializer)]

    def raise_findings(self) -> None:
        if self.damage:
            raise BadInput("\n".join(f"{self.path}: {finding}." for finding in self.damage))
        if self.missing:
            raise Unsupported(self.missing)

    def inputs(self, initializers: Mapping[str, Any]) -> tuple[dict[str, TensorType], dict[str, ElementType]]:
        """Typed inputs and sequence inputs. Old files list initializers among them: constants here."""
        tensors: dict[str, TensorType] = {}
        sequences: dict[str, ElementType] = {}
        for value in self.proto.input:
            name = _interned(value.name)
            if name in initializers:
                continue
            if name in tensors or name in sequences or not name:
                self.damage.append(f"input '{name}' is declared twice or has no name")
            kind = value.type.WhichOneof("value")
            inner = value.type.sequence_type.elem_type
            optional = value.type.optional_type.elem_type
            if kind == "tensor_type" or optional.WhichOneof("value") == "tensor_type":
                tensor = (value.type if kind == "tensor_type" else optional).tensor_type
                element = self.tensors.element(tensor.elem_type, f"input '{name}'")
                tensors[name] = TensorType(element, self.shape(name, tensor))
            elif kind == "sequence_type" and inner.WhichOneof("value") == "tensor_type":
                sequences[name] = self.tensors.element(inner.tensor_type.elem_type, f"input '{name}'")
            elif kind is None:
                self.damage.append(f"input '{name}' has no type")
            else:
                self.missing.append(
                    f"{self.file}: input '{name}' is of kind {kind}, but only tensors, optional tensors and "
                    "sequences of tensors are supported. Change the model's inputs to tensors."
                )
        return tensors, sequences

    def shape(self, name: str, proto: TypeProto.Tensor) -> tuple[Dim, ...] | None:
        """The dimensions of the input `name`, None where the file leaves them out."""
        if not proto.HasField("shape"):
            return None
        dims: list[Dim] = []
        for axis, dim in enumerate(proto.shape.dim):
            kind = dim.WhichOneof("value")
            if kind == "dim_value":
                free = dim.dim_value == -1  # as some exporters write it
                dims.append(symbol(f"{name}_{axis}") if free else int(dim.dim_value))
                if dim.dim_value < -1:
                    self.damage.append(f"input '{name}' has the negative size {dim.dim_value} in axis {axis}")
            elif isinstance(dim.dim_param, str):
                dims.append(symbol(dim.dim_param or f"{name}_{axis}"))
            else:  # protobuf gives bytes for what is not UTF-8
                self.damage.append(f"input '{name}' has a size in axis {axis} whose name is no text")
        return tuple(dims)

    def node(self, proto: NodeProto, index: int) -> Node:
        domain = "" if proto.domain == "ai.onnx" else _interned(proto.domain)
        name = printable(proto.name) or f"{proto.op_type}_{index}"  # a label in messages and reports, no key
        label = f"node '{name}' ({proto.op_type})"
        if not proto.op_type:
            self.damage.append(f"node {index} has no operator")
        if domain not in self.opsets:
            self.damage.append(
                f"{label} is of domain '{domain or 'ai.onnx'}', which the file imports no opset of"
            )
        stated = proto.attribute if proto.op_type != "Optional" else ()  # whose type is that of its input
        attributes = {_interned(a.name): self.attribute(a, label) for a in stated}
        if all(a.type in _PLAIN for a in stated):
            attributes = self.plain.setdefault(repr(attributes), attributes)
        version = self.opsets.get(domain, 0)
        node = Node(
            _interned(proto.op_type),
            domain,
            version,
            name=name,
            inputs=tuple(map(_interned, proto.input)),
            outputs=tuple(map(_interned, proto.output)),
            attributes=attributes,
        )
        if all(isinstance(text, str) for text in (proto.op_type, domain, *attributes)):
            kinds = {a.name: a.type for a in proto.attribute}
            self.damage += [f"{label} {problem}" for problem in schema_violations(node, kinds)]
        else:  # protobuf gives bytes for what is not UTF-8
            self.damage.append(f"{label}: the name of its operator, domain or an attribute is no text")
        return node

    def attribute(self, proto: AttributeProto, label: str) -> Any:
        if proto.type in _PLAIN:
            return _PLAIN[proto.type](proto)
        if proto.type == AttributeProto.TENSOR:
            return self.tensors.read(proto.t, f"{label}: attribute '{proto.name}'")
        if proto.type == AttributeProto.TENSORS:
            return tuple(self.tensors.read(t, f"{label}: attribute '{proto.name}'") for t in proto.tensors)
        if proto.type == AttributeProto.GRAPH:
            return self.subgraph(proto.g)
        if proto.type in AttributeProto.AttributeType.values() and proto.type:
            kind = AttributeProto.AttributeType.Name(proto.type).lower()
            self.missing.append(
                f"{self.file}: {label}: attribute '{proto.name}' of kind {kind} is not supported."
            )
        else:
            self.damage.append(f"{label}: attribute '{proto.name}' has no valid type")
        return None

    def subgraph(self, proto: GraphProto) -> Graph:
        """A graph inside of a node. What it reads from around it is looked at with the whole."""
        outer, self.proto = self.proto, proto
        stored = {t.name: self.tensors.read(t, f"initializer '{t.name}'") for t in self.constants()}
        nodes = tuple(self.node(n, i) for i, n in enumerate(proto.node))
        unknown = TensorType(ElementType.FLOAT, None)  # a round's inputs are what it is given
        inputs = {i.name: unknown for i in proto.input if i.name not in stored}
        self.proto = outer
        return Graph(
            self.file,
            nodes=nodes,
            inputs=inputs,
            sequences={},
            outputs=tuple(o.name for o in proto.output),
            initializers=stored,
        )

    def check_order(self, nodes: tuple[Node, ...], outputs: tuple[str, ...], known: set[str]) -> None:
        """Every name is defined once, and before it is read."""
        known.add("")  # stands for what is left out
        for node, inputs, produced in _uses(nodes, outputs):
            if not known.issuperset(inputs):
                self.damage += [
                    f"{_label(node)} reads '{n}', which nothing before it defines"
                    for n in inputs
                    if n not in known
                ]
            if not known.isdisjoint(produced):
                self.damage += [
                    f"{_label(node)} defines '{n}', which exists already"
                    for n in produced
                    if n and n in known
                ]
            known.update(produced)
        for node in nodes:
            for graph in graphs_in(node):
                self.check_order(graph.nodes, graph.outputs, known | {*graph.inputs, *graph.initializers})


def _interned(name: str) -> str:
    """The name as one string for all its uses in all graphs: deep graphs take less memory, and lookups compare no
    characters. Protobuf gives bytes for what is not UTF-8."""
    return intern(name) if isinstance(name, str) else name


_PLAIN: Mapping[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.FLOAT: lambda proto: float(proto.f),
    AttributeProto.INT: lambda proto: int(proto.i),
    AttributeProto.STRING: lambda proto: proto.s.decode("utf-8", "backslashreplace"),
    AttributeProto.FLOATS: lambda proto: tuple(float(f) for f in proto.floats),
    AttributeProto.INTS: lambda proto: tuple(int(i) for i in proto.ints),
    AttributeProto.STRINGS: lambda proto: tuple(s.decode("utf-8", "backslashreplace") for s in proto.strings),
}


def _uses(
    nodes: tuple[Node, ...], outputs: tuple[str, ...]
) -> Iterator[tuple[Node | None, tuple[str, ...], tuple[str, ...]]]:
    for node in nodes:
        yield node, node.inputs, node.outputs
    yield None, outputs, ()


def _label(node: Node | None) -> str:
    return f"node '{node.name}' ({node.op_type})" if node else "the list of outputs"
