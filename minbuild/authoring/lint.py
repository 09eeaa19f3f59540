"""Remarks on a model before it is trained: places where an exporter wrote something else than is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from minbuild.authoring.likely_constants import likely_constants, likely_repeated
from minbuild.authoring.lora import ADAPTER
from minbuild.authoring.parameters import chosen, parameter_names
from minbuild.frontend.onnx.exporter_metadata import ExporterMetadata
from minbuild.ir import Graph
from minbuild.options.did_you_mean import listed

_NORMALIZATION = "BatchNormalization"
_GENERATED = re.compile(r"\d$|[:/]|const|scalar|_cast$", re.I)  # names that exporters make up, of constants
_MAGNITUDE = "lora_magnitude_vector"
_TRAINING_OUTPUTS = 5  # of BatchNormalization before opset 14, which has no attribute for its mode
_CORNER = 16  # rows and columns of a matrix that are compared first


def lint(graph: Graph, train: Sequence[str], metadata: ExporterMetadata, named: bool) -> Iterator[str]:
    """Warnings in sentences about a recipe that is likely a mistake. `graph` is the forward graph, `train` are the
    parameters that train, `metadata` is what its exporter wrote about itself; `named` says that a user chose them by
    name."""
    usual = set() if named or not metadata.constants else set(chosen(graph, (), ())[0])
    adapters = [n for n in train if ADAPTER.search(n)]
    if adapters and len(adapters) < len(train) and not named:
        yield (
            f"{listed(adapters[:2])}: low-rank adapters, and the weights beside them train, too. To train adapters "
            "only, add --train '*.lora_*'."
        )
    if magnitudes := [n for n in train if _MAGNITUDE in n]:
        yield (
            f"{listed(magnitudes[:2])}: magnitudes of DoRA. `peft` takes the norms that they are divided by as "
            "constants in the backward pass, which no file tells: here gradients flow through them, too."
        )
    if still := [n for n in metadata.constants if n in usual]:
        yield (
            f"{listed(still)}: no parameters of the module, says its exporter; they do not train. To train one, name "
            "it with --train."
        )
    joined = [n for n in metadata.joined if n in train]
    if joined and not named:
        yield (
            f"{listed(joined)}: weights that the exporter joined of others, which train in place of "
            f"{listed(metadata.lost)}. Buffers among them train, too: to keep one as it is, add --frozen {joined[0]}."
        )
    if not named:
        yield from _folded(graph, train, metadata)
    if not (named or metadata.parameters) and (numbers := _named_numbers(graph)):
        yield (
            f"{listed(numbers)}: single numbers, as constants of formulas are mostly; they do not train. To train one "
            f"beside all others, add --train '*' --train {numbers[0]}."
        )
    if not (named or metadata.parameters) and (likely := likely_constants(graph, train)):
        yield (
            f"{listed(likely)}: a mask, or cosines and sines of positions, by what they hold; they train, as the file "
            f"does not say what is a parameter. To keep them as they are, add --frozen {likely[0]}"
            f"{' and likewise for the others' if len(likely) > 1 else ''}."
        )
    if not metadata.parameters and (repeated := likely_repeated(graph, train)):
        yield (
            f"{listed(repeated)}: the same numbers for each place of the first axis, as optimizers write a parameter "
            "for each sample of a fixed batch; they train apart. Optimize a model with a free batch, or take the file "
            "from before, to train one."
        )
    merged = [n for n in metadata.lost if f"{n.rpartition('.')[0]}.running_mean" in metadata.buffers]
    if merged:
        yield (
            f"{listed(merged)}: the exporter merged this normalisation into the layer before it, whose weight and bias "
            "train in its place. Export with optimize=False to train the normalisation."
        )
    lost = [n for n in metadata.lost if n not in merged and not joined]
    if lost and _has_quantized_weights(graph):
        yield (
            f"{listed(lost)}: parameters of the module that the file does not hold under these names. Weights that are "
            "quantized stand there as integers, with names of their own, and do not train; others its exporter left "
            "out, or keeps once where several have equal values."
        )
    elif lost:
        yield (
            f"{listed(lost)}: parameters of the module that the file does not hold. Of those with equal values its "
            "exporter keeps one, and their layers train as one; factors of one and unused parameters it leaves out. "
            "Export with optimize=False to keep them apart."
        )
    if _normalizes_as_inference(graph):
        yield (
            f"{_NORMALIZATION} runs in inference mode, as the model has it: its running statistics do not change, and "
            "batches are not normalised by their own. Exporters write the other mode when asked for training."
        )
    for one, other in _tied(graph, train):
        yield f"{one} and {other} hold the same values: where the module ties them, they train apart here."


def _folded(graph: Graph, train: Sequence[str], metadata: ExporterMetadata) -> Iterator[str]:
    """Constants that were computed of parameters, and stay so."""
    for name, sources in metadata.folded.items():
        of = [n for n in sources if n in metadata.parameters]
        if name not in graph.initializers or not of:
            continue
        what = f"'{name}' was computed of {listed(of)} by the exporter"
        if name in train:
            yield f"{what}, and trains in place of it. Export with optimize=False to train as the module does."
        elif graph.initializers[name].dtype.kind == "f":
            yield (
                f"{what}, and does not train. Export with optimize=False to train as the module does, or name "
                f"it with --train {name}."
            )


def _named_numbers(graph: Graph) -> list[str]:
    """Single numbers whose names are those of parameters rather than of constants."""
    numbers = parameter_names(graph, graph.initializers)
    return [n for n in numbers if graph.initializers[n].ndim == 0 and not _GENERATED.search(n)]


def _has_quantized_weights(graph: Graph) -> bool:
    """True if weights are dequantized in the graph."""
    return any(n.op_type == "DequantizeLinear" and n.inputs[0] in graph.initializers for n in graph.nodes)


def _normalizes_as_inference(graph: Graph) -> bool:
    return any(
        node.op_type == _NORMALIZATION
        and not node.attributes.get("training_mode", 0)
        and len(node.outputs) < _TRAINING_OUTPUTS
        for node in graph.nodes
    )


def _tied(graph: Graph, train: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of matrices that are equal, or transposes of each other. Most differ in a corner, so that their other
    elements need not be read."""
    seen: dict[tuple[object, ...], list[str]] = {}
    for name in train:
        array = graph.initializers[name]
        if array.ndim != 2 or array.dtype.kind != "f":
            continue
        alike = seen.setdefault((*sorted(array.shape), _corner(array)), [])
        # Matrices of one number, such as zeros, are not yet trained, and equal by chance.
        if alike and not array.min() < array.max():
            continue
        for other in alike:
            if _same(array, graph.initializers[other]):
                yield other, name
                break
        alike.append(name)


def _corner(array: np.ndarray) -> bytes:
    """The first elements of a matrix, in an order that its transpose has too."""
    return np.sort(array[:_CORNER, :_CORNER] + array.dtype.type(0), axis=None).tobytes()  # -0 equals 0


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other) or np.array_equal(one.T, other)
