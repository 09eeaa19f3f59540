"""Blocks that are whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minbuild.authoring import Recipe, Source, artifacts_of, types_of
from minbuild.authoring.artifact_graphs import DONE, TRUTH, without_input_gradients
from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.errors import BadInput
from minbuild.frontend.onnx.writer import model_proto, opsets_of, tensor_proto
from minbuild.ir import TrainingArtifacts
from minbuild.training.onnxblock.accessor import ModelAccessor
from minbuild.training.onnxblock.blocks import Block


class ForwardBlock(Block):
    """A model that only computes. Subclasses write it in `build`, which returns the model's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self._made: tuple[ModelAccessor, tuple[str, ...]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = self.build(*args, **kwargs)
        self._made = (self.base, (names,) if isinstance(names, str) else tuple(names))
        return names

    def _built(self, attribute: str = "model") -> tuple[TypedGraphBuilder, tuple[str, ...]]:
        made = getattr(self, "_made", None)
        if made is None:
            raise BadInput(
                f"{type(self).__name__}: not built yet. Please build the training model first before trying to "
                f"retrieve the {attribute}. Call it inside of onnxblock.base."
            )
        return made[0].compose, made[1]

    def to_model_proto(self) -> Any:
        """The model as an onnx.ModelProto. Raises BadInput before it is called."""
        compose, outputs = self._built()
        # A sequence has no type that could be declared: whoever makes one adds it to the outputs.
        graph = compose.graph([n for n in outputs if not compose.is_sequence(n)])
        types = {n: compose.type_of(n) for node in graph.nodes for n in node.outputs if n and compose.has(n)}
        types |= {n: compose.type_of(n) for n in graph.outputs}
        return model_proto(graph, types, opsets_of(graph.nodes, compose.opset))


class TrainingBlock(ForwardBlock):
    """A model that trains: `build` returns the loss, and further outputs after it."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[str, bool] = {}

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """True if a parameter trains, or an input gets a gradient. Without a call for any, every parameter trains."""
        self._wanted[argument_name] = value

    def parameters(self) -> tuple[list[Any], list[Any]]:
        """Trained and frozen parameters, as onnx.TensorProto. Raises BadInput and Unsupported."""
        found: tuple[list[Any], list[Any]] = [], []
        self._built("parameters")
        for parameter in self._artifacts().checkpoint.parameters:
            found[not parameter.trainable].append(tensor_proto(parameter.name, parameter.data))
        return found

    def to_model_proto(self) -> tuple[Any, Any]:
        """The training and the evaluation model as onnx.ModelProto. Raises BadInput and Unsupported."""
        compose, artifacts = self._built()[0], self._artifacts()
        flags = {n: TRUTH for n in artifacts.training.outputs if n.endswith(DONE)}
        types = {
            source: {**found, **flags}
            for source, found in types_of(without_input_gradients(artifacts), compose.registry).items()
        }
        return tuple(
            model_proto(graph, types[graph.source], opsets_of(graph.nodes, compose.opset))
            for graph in (artifacts.training, artifacts.evaluation)
            if graph is not None
        )  # type: ignore[return-value]

    def _artifacts(self) -> TrainingArtifacts:
        compose, names = self._built()
        inputs = tuple(n for n, value in self._wanted.items() if value and n in compose.inputs)
        recipe = Recipe(
            train=tuple(n for n, value in self._wanted.items() if value and n not in inputs),
            frozen=tuple(n for n, value in self._wanted.items() if not value and n not in compose.inputs),
            input_gradients=inputs,
            loss_output=names[0],
            outputs=names[1:],
            optimizer="",
            tolerant=True,
        )
        model = Source(compose.graph(names), compose.opset, Path(compose.start.source))
        return artifacts_of(model, recipe, compose.registry)
