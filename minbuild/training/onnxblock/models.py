"""Blocks that are whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minbuild.authoring import Recipe, Source, artifacts_of, types_of
from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.errors import BadInput
from minbuild.frontend.onnx.writer import model_proto, opsets_of, tensor_proto
from minbuild.ir import TrainingArtifacts
from minbuild.training.onnxblock.blocks import Block


class ForwardBlock(Block):
    """A model that only computes. Subclasses write it in `build`; what that answers are the model's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self._made: tuple[TypedGraphBuilder, tuple[str, ...]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = self.build(*args, **kwargs)
        self._made = (self.base, (names,) if isinstance(names, str) else tuple(names))
        return names

    def _built(self) -> tuple[TypedGraphBuilder, tuple[str, ...]]:
        if self._made is None:
            raise BadInput(f"{type(self).__name__}: not built yet. Call it first, inside of onnxblock.base.")
        return self._made

    def to_model_proto(self) -> Any:
        """The model as an onnx.ModelProto. Raises BadInput before it is called."""
        compose, outputs = self._built()
        graph = compose.graph(outputs)
        types = {n: compose.type_of(n) for node in graph.nodes for n in node.outputs if n}
        types |= {n: compose.type_of(n) for n in graph.outputs}
        return model_proto(graph, types, opsets_of(graph.nodes, compose.opset))


class TrainingBlock(ForwardBlock):
    """A model that trains: `build` answers the loss, and further outputs after it."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[str, bool] = {}

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Whether a parameter trains. Without any call every parameter does."""
        self._wanted[argument_name] = value

    def parameters(self) -> tuple[list[Any], list[Any]]:
        """Trained and frozen parameters, as onnx.TensorProto. Raises BadInput and Unsupported."""
        found: tuple[list[Any], list[Any]] = [], []
        for parameter in self._bundle().checkpoint.parameters:
            found[not parameter.trainable].append(tensor_proto(parameter.name, parameter.data))
        return found

    def to_model_proto(self) -> tuple[Any, Any]:
        """The training and the evaluation model as onnx.ModelProto. Raises BadInput and Unsupported."""
        compose, artifacts = self._built()[0], self._bundle()
        types = types_of(artifacts, compose.registry)
        return tuple(
            model_proto(graph, types[graph.source], opsets_of(graph.nodes, compose.opset))
            for graph in (artifacts.training, artifacts.evaluation)
            if graph is not None
        )  # type: ignore[return-value]

    def _bundle(self) -> TrainingArtifacts:
        compose, names = self._built()
        wanted = tuple(n for n, value in self._wanted.items() if value)
        frozen = tuple(n for n, value in self._wanted.items() if not value)
        recipe = Recipe(train=wanted, frozen=frozen, loss_output=names[0], outputs=names[1:], optimizer="")
        model = Source(compose.graph(names), compose.opset, Path(compose.start.source))
        return artifacts_of(model, recipe, compose.registry)
