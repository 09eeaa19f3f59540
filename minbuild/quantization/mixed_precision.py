"""An inference graph in float with its layers in 8-bit numbers, as far as its outputs stay near.

Where all layers in 8 bits are farther from the float model on the batches than allowed, those that contribute most
get float activations, then float weights, until they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import Checkpoint, Graph, TrainingArtifacts
from minbuild.ops import Registry
from minbuild.planning.inference_export import default_outputs, prune
from minbuild.quantization.calibration import read_batches
from minbuild.quantization.layers import Constants, Layer, layers_of, with_folded_normalization
from minbuild.quantization.pairs import with_pairs
from minbuild.quantization.ranges import Quantized, activation_range
from minbuild.reference.interpreter import ReferenceTrainer

PER_AXIS = 13  # the first opset with a scale for each channel
MOST_DIFFERENCE = 0.01
_DEQUANTIZE = ("DequantizeLinear", "FakeQuant")
Batch = Mapping[str, np.ndarray]
_Values = dict[str, np.ndarray]


class Form(IntEnum):
    """The part of a layer that is in 8 bits."""

    PRODUCT = 2
    WEIGHT = 1
    NOTHING = 0


@dataclass(frozen=True)
class QuantizedModel:
    """Artifacts whose evaluation graph is quantised, with the form of each layer by the name of its output; and how far
    outputs are from the float model's on the batches, as part of their largest element."""

    artifacts: TrainingArtifacts
    forms: Mapping[str, Form]
    difference: float
    batches: int

    @property
    def outputs(self) -> tuple[str, ...]:
        assert self.artifacts.evaluation is not None
        return self.artifacts.evaluation.outputs

    def summary(self) -> str:
        """One line on what is quantised, and how near the outputs are."""
        forms = list(self.forms.values())
        whole, weights, none = (forms.count(form) for form in (Form.PRODUCT, Form.WEIGHT, Form.NOTHING))
        return (
            f"{whole} of {len(forms)} layers in 8 bits, {weights} in weights alone, {none} in float; outputs are at "
            f"most {self.difference:.2%} of the largest from the float model's on {self.batches} batches"
        )


def quantized(
    artifacts: TrainingArtifacts,
    trained: Checkpoint,
    batches: Sequence[Path],
    outputs: Sequence[str],
    operators: Registry,
    most: float = MOST_DIFFERENCE,
) -> QuantizedModel:
    """The artifacts with the part of the evaluation graph that makes `outputs` (default: what the loss is taken of)
    quantised: weights per output channel, activations per tensor with ranges from `batches`, biases in 32 bits.
    `trained` has the parameters; `batches` are .npz files or folders of them; `most` is the largest difference of
    outputs from the float model's that is allowed, as part of their largest element. `artifacts` are the model's,
    `operators` have the shape rules. Raises BadInput and Unsupported."""
    if not batches:
        raise BadInput(
            "--quantize: ranges of activations come from data, and no batches are given. Save some with numpy.savez, "
            "an array for each input of the model, and name the files with --batches."
        )
    if not 0 < most < float("inf"):
        raise BadInput(f"--max-difference {most}: not a part of the largest output. Write one such as 0.01.")
    graph = artifacts.evaluation
    if graph is None:
        raise BadInput(
            "there is no evaluation model, which an inference model is a part of. Generate it too."
        )
    stored = {p.name: p for p in (*artifacts.checkpoint.parameters, *trained.parameters)}
    parameters = {n: np.asarray(p.data) for n, p in stored.items() if p.data is not None}
    chosen = tuple(outputs) or default_outputs(graph, stored.keys())
    graph = with_folded_normalization(prune(graph, chosen), parameters)
    layers = list(layers_of(graph, Constants(graph, parameters)))
    _check(graph, layers)
    data = read_batches(batches, {n: t for n, t in graph.inputs.items() if n not in stored})
    search = _Search(replace(artifacts, evaluation=graph), parameters, operators, layers, data)
    return search.nearest(most)


def _check(graph: Graph, layers: Sequence[Layer]) -> None:
    if not layers:
        raise BadInput(
            f"--quantize: {graph.source}: no Conv, Gemm or MatMul by a constant float weight is left to quantise."
        )
    opset = min(layer.node.version for layer in layers)
    if opset < PER_AXIS:
        raise Unsupported(
            [
                f"--quantize: {graph.source} is of opset {opset}, and a scale for each channel needs {PER_AXIS}. "
                "Convert the model with onnx.version_converter before its artifacts are made."
            ]
        )


class _Search:
    """Forms of layers, and how far each choice of them is from the float model on batches."""

    def __init__(
        self,
        artifacts: TrainingArtifacts,
        parameters: _Values,
        operators: Registry,
        layers: Sequence[Layer],
        batches: Sequence[Batch],
    ) -> None:
        assert artifacts.evaluation is not None
        self.artifacts, self.parameters, self.operators = artifacts, parameters, operators
        self.graph, self.layers, self.batches = artifacts.evaluation, layers, batches
        read = dict.fromkeys(layer.node.inputs[0] for layer in layers)
        seen = [self._values(self.graph, (*self.graph.outputs, *read), batch) for batch in batches]
        self.float_outputs = [{n: values[n] for n in self.graph.outputs} for values in seen]
        dequantized = {n for m in self.graph.nodes if m.op_type in _DEQUANTIZE for n in m.outputs}
        self.ranges: dict[str, Quantized] = {
            name: activation_range(np.concatenate([values[name].reshape(-1) for values in seen]))
            for name in read
            if name not in dequantized
        }

    def nearest(self, most: float) -> QuantizedModel:
        """As many layers in 8 bits as stay within `most`: those that differ most alone are left out first, until it is
        enough; then what turns out not to matter comes back."""
        whole = dict.fromkeys(range(len(self.layers)), Form.PRODUCT)
        found = self._model(whole, self.batches)
        if found.difference <= most:
            return found
        left = self._by_difference()
        least, enough = 1, len(left)
        while least < enough:
            middle = (least + enough) // 2
            model = self._model(self._without(left[:middle]), self.batches)
            least, enough = (least, middle) if model.difference <= most else (middle + 1, enough)
        left = left[:enough]
        for item in tuple(reversed(left)):
            rest = [other for other in left if other != item]
            if self._model(self._without(rest), self.batches).difference <= most:
                left = rest
        found = self._model(self._without(left), self.batches)
        if not any(found.forms.values()):
            raise BadInput(
                f"--quantize: outputs differ by more than {most:.2%} with any layer in 8 bits. "
                "Allow more with --max-difference."
            )
        return found

    def _by_difference(self) -> list[tuple[int, Form]]:
        """Layers and what can be left out of them, that which makes the largest difference first."""
        alone: list[tuple[float, Form, int]] = []
        for i in range(len(self.layers)):
            nothing = dict.fromkeys(range(len(self.layers)), Form.NOTHING)
            both, weight = (
                self._model(nothing | {i: form}, self.batches[:1]).difference
                for form in (Form.PRODUCT, Form.WEIGHT)
            )
            activation = max(both**2 - weight**2, 0.0) ** 0.5  # roundings of both are independent
            alone += [(activation, Form.PRODUCT, i), (weight, Form.WEIGHT, i)]
        return [(i, form) for _, form, i in sorted(alone, reverse=True)]

    def _without(self, left: Sequence[tuple[int, Form]]) -> dict[int, Form]:
        forms = dict.fromkeys(range(len(self.layers)), Form.PRODUCT)
        for i, form in left:
            forms[i] = min(forms[i], Form(form - 1))
        return forms

    def _model(self, forms: Mapping[int, Form], batches: Sequence[Batch]) -> QuantizedModel:
        chosen = [(layer, forms[i]) for i, layer in enumerate(self.layers)]
        ranges = {
            layer.node.outputs[0]: self.ranges.get(layer.node.inputs[0]) if form is Form.PRODUCT else None
            for layer, form in chosen
        }
        graph = with_pairs(self.graph, [layer for layer, form in chosen if form], ranges)
        difference = 0.0
        for batch, wanted in zip(batches, self.float_outputs, strict=False):
            found = self._values(graph, graph.outputs, batch)
            difference = max(difference, *(_difference(found[n], wanted[n]) for n in graph.outputs))
        named = {layer.node.outputs[0]: form for layer, form in chosen}
        return QuantizedModel(replace(self.artifacts, evaluation=graph), named, difference, len(batches))

    def _values(self, graph: Graph, names: Sequence[str], batch: Batch) -> _Values:
        """The values of these names, in double precision. Raises BadInput where one is not finite."""
        inputs = {n: t for n, t in graph.inputs.items() if n in self.parameters or n in batch}
        given = {n: np.asarray(batch[n]) for n in inputs if n not in self.parameters}
        computed = [n for n in dict.fromkeys(names) if n not in given]
        asked = replace(graph, inputs=inputs, outputs=tuple(computed))
        trainer = ReferenceTrainer(replace(self.artifacts, evaluation=asked), self.operators)
        trainer.parameters |= {n: np.asarray(a, np.float64) for n, a in self.parameters.items()}
        found = given | dict(zip(computed, trainer.eval_step(*given.values()), strict=True))
        for name in names:
            if not np.isfinite(found[name]).all():
                raise BadInput(
                    f"--batches: value '{name}' of {graph.source} becomes NaN or infinite on them and has no range. "
                    "Check the trained parameters and the batches."
                )
        return found


def _difference(found: np.ndarray, exact: np.ndarray) -> float:
    """As part of the largest element."""
    largest = float(np.abs(exact).max(initial=0))
    return float(np.abs(found - exact).max(initial=0)) / largest if largest else 0.0
