"""The meaning of artifacts: an interpreter that runs their graphs node by node, as written, in float64.

It is the yardstick for built trainers and shares with them only the operators' `reference` functions: no
passes, no plan, no shapes known in advance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.onnx.function_inlining import function_nodes
from minbuild.frontend.onnx.unroll import unrolled
from minbuild.ir import (
    GRADIENT_SUFFIX,
    RESET_INPUT,
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Shape,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.dims import Dim
from minbuild.ops import Registry, registry
from minbuild.ops.core.definition import Op, OpContext
from minbuild.ops.core.graph_builder import GraphBuilder, named
from minbuild.reference.optimizers import OPTIMIZERS, SKIPPED

ACCUMULATOR = "com.microsoft:InPlaceAccumulatorV2"
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Scope:
    """Everything is known here."""

    values: Tensors

    def content(self, name: str) -> np.ndarray | None:
        return self.values.get(name)

    def shape(self, name: str) -> Shape:
        return self.values[name].shape

    def element(self, name: str) -> ElementType:
        return _element(self.values[name])


class ReferenceTrainer:
    """Trains artifacts in float64, or in another type of real numbers. `parameters`, `gradients` and `moments` are by
    name and may be written.

    Raises Unsupported, from the step that meets it, for an operator without a reference.
    """

    def __init__(
        self,
        artifacts: TrainingArtifacts,
        operators: Registry | None = None,
        real: ElementType = ElementType.DOUBLE,
    ) -> None:
        """A trainer of `artifacts`; `operators` are all by default; `real` is what real numbers are computed in."""
        self.artifacts = artifacts
        self.real = real
        self.operators = operators or registry()
        self.learning_rate = 0.001
        self.draws: Tensors = {}  # by node that has a seed; "": all others together
        self.load(artifacts.checkpoint)

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes parameters, and optimizer state where there is some; gradients become zero."""
        self.parameters: Tensors = {}
        for parameter in checkpoint.parameters:
            if parameter.data is None:
                raise BadInput(f"parameter '{parameter.name}' has no data: the checkpoint is nominal.")
            self.parameters[parameter.name] = _exact(parameter.data, self.real).copy()
        self.trained = tuple(p.name for p in checkpoint.parameters if p.trainable)
        self.gradients: Tensors = {n: np.zeros_like(self.parameters[n]) for n in self.trained}
        group = checkpoint.groups[0] if checkpoint.groups else None
        saved = group.moments if group else {}
        self.moments: dict[str, list[np.ndarray]] = {
            n: [_moment(saved, n, i, self.parameters[n], self.real) for i in range(2)] for n in self.trained
        }
        self.step_count = group.step if group else 0
        self._reset = True

    def train_step(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Forward and backward: user outputs in order. Adds to the gradients; replaces them after a reset."""
        outputs = self._run(self.artifacts.training, inputs)
        self._reset = False
        return outputs

    def eval_step(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The evaluation graph's outputs."""
        if self.artifacts.evaluation is None:
            raise BadInput("these artifacts have no evaluation model.")
        return self._run(self.artifacts.evaluation, inputs)

    def initialize(self) -> None:
        """Resets variables as the model's own training information says; others keep their values."""
        if self.artifacts.initialization is None:
            raise BadInput("the model has no training information that says how to initialize it.")
        self._run(self.artifacts.initialization, ())

    def set_seed(self, seed: int) -> None:
        """The seed of the next node that draws random numbers and has no seed of its own."""
        self.draws[""] = np.array([seed])

    def lazy_reset_grad(self) -> None:
        """The next train step replaces the gradients."""
        self._reset = True

    def optimizer_step(self) -> None:
        """Runs the optimizer graph's nodes on all trained parameters; the first one sees step 1."""
        if self.artifacts.optimizer is None:
            raise BadInput("these artifacts have no optimizer model.")
        self.step_count += 1
        for node in self.artifacts.optimizer.nodes:
            apply = OPTIMIZERS.get(node.title)
            if apply is None:
                raise _unsupported(self.artifacts.optimizer, node)
            if apply(self, node) is SKIPPED:
                self.step_count -= 1
                return

    def values(self, graph: Graph, inputs: Sequence[np.ndarray]) -> Tensors:
        """Every value of `graph` on these user inputs. Gradients that it accumulates are added to or replaced."""
        names = list(user_inputs(graph, self.parameters))
        if len(names) != len(inputs):
            raise BadInput(
                f"{graph.source} takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}."
            )
        values: Tensors = {n: _exact(x, self.real) for n, x in graph.initializers.items()}
        values |= {n: _exact(np.asarray(x), self.real) for n, x in zip(names, inputs, strict=True)}
        values |= {n: self.parameters[n] for n in graph.inputs if n in self.parameters}
        makers: dict[str, Node] = {}
        for node in graph.nodes:
            if node.title == ACCUMULATOR:
                self._accumulate(node, values)
            else:
                self._compute(graph, node, values, makers)
        return values

    def _run(self, graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = self.values(graph, inputs)
        flags = {node.outputs[0] for node in graph.nodes if node.title == ACCUMULATOR}
        return [values[name] for name in graph.outputs if name not in flags]

    def _compute(self, graph: Graph, node: Node, values: Tensors, makers: dict[str, Node]) -> None:
        """Adds the node's outputs to `values`."""
        parts = self._parts(node, values)
        for part in parts or ():  # some are written when those before them are computed
            self._compute(graph, part, values, makers)
        if parts is None:
            results = self._apply(graph, node, values, makers)
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    values[name], makers[name] = _exact(np.asarray(result), self.real), node

    def _parts(self, node: Node, values: Tensors) -> Iterable[Node] | None:
        """The nodes that `node` is made of, where it has no meaning of its own."""
        steps = unrolled(node, _Scope(values))
        if steps is not None:
            return steps
        op = self.operators.find(node.domain, node.op_type)
        given = [values[name] if name else None for name in node.inputs]
        types = tuple(None if x is None else TensorType(_element(x), x.shape) for x in given)
        if op is None and node.title != "MaxPoolGrad":
            return function_nodes(node, types)
        if op is None or op.reference is not None or op.decompose is None:
            return None
        ctx = OpContext(node.attributes, types, tuple(given), node.version)
        body = GraphBuilder(ctx, node.inputs, node.outputs, node.name)
        results = body.write(op.decompose)
        return None if results is None else named(body, results, node.outputs)

    def _accumulate(self, node: Node, values: Mapping[str, np.ndarray]) -> None:
        name = node.inputs[0].removesuffix(GRADIENT_SUFFIX)
        gradient = values[node.inputs[1]].reshape(self.gradients[name].shape)
        self.gradients[name] = gradient.copy() if self._reset else self.gradients[name] + gradient

    def _apply(
        self, graph: Graph, node: Node, values: Mapping[str, np.ndarray], makers: Mapping[str, Node]
    ) -> tuple[np.ndarray, ...]:
        given = [values[name] if name else None for name in node.inputs]
        if node.title == "MaxPoolGrad":
            return (_max_pool_grad(values[makers[node.inputs[1]].inputs[0]], *given),)
        op = self.operators.find(node.domain, node.op_type)
        if op is None or op.reference is None:
            raise _unsupported(graph, node)
        if node.title == "AveragePoolGrad":
            given.append(np.array(_pooled_shape(op, node, values, makers), np.int64))
        if op.generator is not None:
            return self._drawn(graph, node, op, given)
        attributes = node.attributes
        if node.title == "Split":  # equal parts, as many as there are outputs
            attributes = {"num_outputs": len(node.outputs), **attributes}
        found = op.reference(attributes, *given)
        results = found if isinstance(found, tuple) else (found,)
        for source, output in op.mutates.items():
            # Running statistics change in place, whether or not the node names the output.
            if output is not None and node.inputs[source] in self.parameters:
                self.parameters[node.inputs[source]][...] = results[output]
        return results

    def _drawn(
        self, graph: Graph, node: Node, op: Op, given: Sequence[np.ndarray | None]
    ) -> tuple[np.ndarray, ...]:
        """The results of a node that draws random numbers, seeded by how often numbers were drawn before."""
        assert op.reference is not None and op.generator is not None
        of = f"{graph.source}:{node.outputs[0]}" if "seed" in node.attributes else ""
        absent = (None,) * (op.generator - len(given))
        draws = self.draws.get(of, np.zeros(1, np.int64))
        *results, self.draws[of] = op.reference(node.attributes, *given, *absent, draws)
        return tuple(results)


def user_inputs(graph: Graph, parameters: Mapping[str, object]) -> Iterator[str]:
    """The inputs of a training or evaluation graph that a batch fills, in order."""
    for name in graph.inputs:
        if name not in parameters and name != RESET_INPUT and not name.endswith(GRADIENT_SUFFIX):
            yield name


def _element(array: np.ndarray) -> ElementType:
    element = ElementType.of(array.dtype)
    assert element is not None, f"no element type is {array.dtype}"
    return element


def _exact(array: np.ndarray, real: ElementType) -> np.ndarray:
    """Real numbers as `real`, everything else as it is."""
    element = ElementType.of(array.dtype)
    return array.astype(real.dtype) if element and element.is_real else array


def _moment(
    saved: Mapping[str, Mapping[str, np.ndarray]], name: str, index: int, like: np.ndarray, real: ElementType
) -> np.ndarray:
    array = saved.get(name, {}).get(f"momentum{index}")
    return np.zeros_like(like) if array is None else _exact(array, real).copy()


def _unsupported(graph: Graph, node: Node) -> Unsupported:
    where = f"{graph.source}: node '{node.name}' ({node.title}, opset {node.version})"
    return Unsupported([f"{where}: no reference to compute it with. Add one to its file in ops."])


def _max_pool_grad(x: np.ndarray, dy: np.ndarray | None, indices: np.ndarray | None) -> np.ndarray:
    """The pooled input `x` gives only its shape, which the node itself does not know."""
    assert dy is not None and indices is not None
    dx = np.zeros(x.size)
    np.add.at(dx, indices.ravel(), dy.ravel())
    return dx.reshape(x.shape)


def _pooled_shape(
    op: Op, node: Node, values: Mapping[str, np.ndarray], makers: Mapping[str, Node]
) -> tuple[Dim, ...]:
    """The shape of what an AveragePool took, which its gradient is not given."""

    def ctx(of: Node, **others: Any) -> OpContext:
        types = tuple(TensorType(_element(values[n]), values[n].shape) for n in of.inputs)
        known = (None,) * len(types)
        return OpContext(
            of.attributes,
            types,
            known,
            of.version,
            of.inputs,
            result_names=of.outputs,
            op=f":{of.op_type}",
            **others,
        )

    earlier = {name: ctx(made) for name, made in makers.items() if made.title == "AveragePool"}
    assert op.infer is not None
    return op.infer(ctx(node, earlier=earlier))[0].shape or ()
