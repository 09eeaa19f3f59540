"""The model that blocks write into: typed writing and an onnx.ModelProto that may be edited, kept alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.errors import BadInput
from minbuild.frontend.onnx.reader import opset_in, raised, read_model
from minbuild.frontend.onnx.writer import append_to_model, model_proto, opsets_of
from minbuild.ir import Graph, Node, TensorType
from minbuild.ops import Registry


class ModelAccessor:
    """One model under construction. `model` is its onnx.ModelProto, as in onnxruntime; custom blocks may read and edit
    it, and what they change is there for the next block. Everything else a ModelProto has (`graph`, `opset_import`)
    can be named directly. The methods write nodes with types at once, as `TypedGraphBuilder` does.
    """

    def __init__(self, builder: Callable[[], TypedGraphBuilder], path: Path, model: Any = None) -> None:
        """`builder` makes the typed graph when it is first needed; `model` is its ModelProto, if there is one. `path`
        is the file that the model is written to."""
        self.path = path
        self._begin, self._builder = builder, None if model is not None else builder()
        self._model, self._fingerprint = model, fingerprint(model) if model is not None else b""
        self._written = 0  # nodes of the builder that the ModelProto has

    @classmethod
    def of_model(cls, model: Any, path: Path, known: Registry) -> ModelAccessor:
        """Continues a copy of an onnx.ModelProto. `model` is that ModelProto, `path` the file it is written to,
        `known` the operators."""
        copy = type(model).FromString(raised(model).SerializeToString())
        return cls(lambda: TypedGraphBuilder(read_model(copy, path), known, opset_in(copy)), path, copy)

    @property
    def model(self) -> Any:
        """The onnx.ModelProto."""
        if self._model is None:
            compose = self.compose
            graph = compose.graph(compose.start.outputs)
            known = (n for node in graph.nodes for n in node.outputs if n and compose.has(n))
            types = {n: compose.type_of(n) for n in known}
            types |= {n: compose.type_of(n) for n in graph.outputs}
            self._model = model_proto(graph, types, opsets_of(graph.nodes, compose.opset))
            self._note()
        return self._model

    def replace(self, model: Any) -> None:
        """Makes the content of another onnx.ModelProto the model, where there is nothing yet."""
        if self.model.graph.node or self.model.graph.initializer:
            raise BadInput(
                f"{self.path}: an optimizer is a model of its own. Call it inside of onnxblock.empty_base."
            )
        self._model.CopyFrom(model)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def compose(self) -> TypedGraphBuilder:
        """The graph with its types, edits of the ModelProto included."""
        if self._builder is None:
            self._builder = self._begin()
            self._note()
        elif self._model is not None and fingerprint(self._model) != self._fingerprint:
            self._builder.restart(read_model(self._model, self.path), opset_in(self._model))
            self._note()
        return self._builder

    def finish(self) -> None:
        """Takes over edits of the ModelProto that no block came after."""
        _ = self.compose

    def _note(self) -> None:
        """Records the state that the typed graph and the ModelProto share from here on."""
        assert self._builder is not None
        self._written = len(self._builder.nodes)
        self._known = {*self._builder.inputs, *self._builder.initializers}
        if self._model is not None:
            self._fingerprint = fingerprint(self._model)

    def _through(self, action: Callable[[TypedGraphBuilder], Any]) -> Any:
        """Writes, then brings the ModelProto up to date."""
        compose = self.compose
        result = action(compose)
        if self._model is not None:
            append_to_model(
                self._model,
                compose.nodes[self._written :],
                {n: t for n, t in compose.inputs.items() if n not in self._known},
                {n: a for n, a in compose.initializers.items() if n not in self._known},
            )
            self._note()
        return result

    # ------------------------------------------------------------------------------------------ typed writing

    def many(self, count: int, op_type: str, *inputs: str, **options: Any) -> tuple[str, ...]:
        """A node with `count` outputs: their names."""
        return self._through(lambda c: c.many(count, op_type, *inputs, **options))  # type: ignore[no-any-return]

    def add(self, op_type: str, *inputs: str, **options: Any) -> str:
        """A node with one output: its name."""
        return self._through(lambda c: c.add(op_type, *inputs, **options))  # type: ignore[no-any-return]

    def add_on_sequence(self, op_type: str, *inputs: str, **options: Any) -> str:
        """A node that reads and makes a sequence of tensors, which has no type here: the name of its output."""
        return self._through(lambda c: c.add_on_sequence(op_type, *inputs, **options))  # type: ignore[no-any-return]

    def extend(self, nodes: Sequence[Node]) -> None:
        """Nodes written elsewhere."""
        self._through(lambda c: c.extend(nodes))

    def constant(self, value: Any, like: str = "") -> str:
        """A constant, of the element type of value `like`."""
        return self._through(lambda c: c.constant(value, like))  # type: ignore[no-any-return]

    def input(self, name: str, tensor: TensorType) -> str:
        """An input of the model."""
        return self._through(lambda c: c.input(name, tensor))  # type: ignore[no-any-return]

    def parameter(self, name: str, array: np.ndarray) -> str:
        """An initializer."""
        return self._through(lambda c: c.parameter(name, array))  # type: ignore[no-any-return]

    def write(self, action: Callable[[TypedGraphBuilder], Any]) -> Any:
        """The result of a function that writes into the typed graph."""
        return self._through(action)

    def has(self, name: str) -> bool:
        """True if there is such a value."""
        return self.compose.has(name)

    def is_sequence(self, name: str) -> bool:
        """True if an input is a sequence of tensors."""
        return self.compose.is_sequence(name)

    def type_of(self, name: str) -> TensorType:
        """Element type and shape of a value."""
        return self.compose.type_of(name)

    def parts(self, name: str) -> tuple[str, ...]:
        """The values that a SequenceConstruct put into a sequence."""
        return self.compose.parts(name)

    def unused(self, name: str) -> str:
        """A name for a node that no node has."""
        return self.compose.unused(name)

    def whole(self, outputs: Sequence[str]) -> Graph:
        """The graph so far, returning `outputs`."""
        return self.compose.graph(outputs)


def fingerprint(model: Any) -> bytes:
    """A digest of a ModelProto's structure: everything but what its initializers hold."""
    graph, digest = model.graph, hashlib.blake2b(digest_size=16)
    for part in (*graph.node, *graph.input, *graph.output, *model.opset_import):
        digest.update(part.SerializeToString())
    for tensor in graph.initializer:
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode())
    return digest.digest()
