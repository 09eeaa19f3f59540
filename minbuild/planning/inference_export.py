"""The model for inference that is inside of training artifacts: which outputs it has, what they need, and its ONNX file
with holes where parameters go. A device fills the holes while it writes the file out."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from shlex import quote

import numpy as np

from minbuild.errors import BadInput
from minbuild.frontend.onnx.quantization_pairs import MICROSOFT, MINBUILD, with_quantization_pairs
from minbuild.frontend.onnx.reader import read_graph
from minbuild.frontend.onnx.stored_weights import with_stored_weights
from minbuild.frontend.onnx.subgraphs import has_domain, names_read
from minbuild.frontend.onnx.template_writer import Piece, opsets_imported, template_file
from minbuild.ir import Checkpoint, Graph, PlanParameter, Program, TensorType, TrainingArtifacts
from minbuild.ir.dims import Dim
from minbuild.ops import registry
from minbuild.options.did_you_mean import listed
from minbuild.passes.lowering.lower import lower

EXPORT_TEMPLATE = b"MBIM"
MOST_IN_FILE = 2**31 - 1  # bytes that protobuf reads of a file
_OF_LOSS = re.compile(r"onnx::[a-z_.]+::\d+")  # what generate_artifacts calls values of a loss


@dataclass(frozen=True, slots=True)
class Inference:
    """An ONNX file in pieces, with the outputs it gives."""

    pieces: tuple[Piece, ...]
    outputs: tuple[str, ...]

    def file(self, parameters: Mapping[str, np.ndarray]) -> bytes:
        """The file with these values of the parameters. Raises KeyError for one that is missing."""
        little = {n: a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for n, a in parameters.items()}
        return b"".join(p if isinstance(p, bytes) else little[p] for p in self.pieces)

    def template(self, parameters: Sequence[PlanParameter], sizes: Mapping[str, int]) -> bytes:
        """The input of the device's export: identifier and number of pieces; for each its bytes, and its parameter's
        number from 1 or 0; then the bytes of the pieces without parameter. `sizes` are bytes of parameters."""
        number = {p.name: i for i, p in enumerate(parameters, 1)}
        words: list[int] = [len(self.pieces)]
        for piece in self.pieces:
            words += (len(piece), 0) if isinstance(piece, bytes) else (sizes[piece], number[piece])
        fixed = b"".join(p for p in self.pieces if isinstance(p, bytes))
        return EXPORT_TEMPLATE + struct.pack(f"<{len(words)}I", *words) + fixed


def template_outputs(template: bytes) -> tuple[str, ...]:
    """The outputs of the model that a template makes."""
    (count,) = struct.unpack_from("<I", template, 4)
    words = struct.unpack_from(f"<{2 * count}I", template, 8)
    at, file = 8 + 8 * count, bytearray()
    for size, number in zip(words[::2], words[1::2], strict=True):
        file += bytes(size) if number else template[at : at + size]
        at += 0 if number else size
    return tuple(read_graph(bytes(file), Path("model.onnx")).outputs)


def fill_template(template: bytes, parameters: Sequence[np.ndarray], outputs: Sequence[str]) -> bytes:
    """The ONNX file that the device exports from a template: `parameters` are those of the plan, in its order,
    `outputs` those that are requested. `template` is the template as it is in the plan. Raises BadInput for other
    outputs than the template has."""
    (count,) = struct.unpack_from("<I", template, 4)
    words = struct.unpack_from(f"<{2 * count}I", template, 8)
    at, file = 8 + 8 * count, bytearray()
    for size, number in zip(words[::2], words[1::2], strict=True):
        if number == 0:
            file += template[at : at + size]
            at += size
        else:
            array = parameters[number - 1]
            file += array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    there = read_graph(bytes(file), Path("model.onnx")).outputs
    if sorted(outputs) != sorted(there):
        raise BadInput(
            f"this package exports {', '.join(there)}, not {', '.join(outputs) or 'nothing'}. Ask for that, or reduce "
            f"again with {' '.join(f'--export-output {quote(name)}' for name in outputs or there)}."
        )
    return bytes(file)


def inference(
    artifacts: TrainingArtifacts,
    program: Program,
    outputs: Sequence[str] = (),
    fixed: Mapping[str, Dim] | None = None,
    held: Set[str] | None = None,
) -> Inference:
    """The part of the evaluation graph that makes `outputs`, or what the loss is taken of. Parameters become
    initializers: those in `held` (default: all) as holes, others with the checkpoint's values. `program` is the
    lowered artifacts, `fixed` the sizes given to its free dimensions. `artifacts` are the model's. Raises
    BadInput."""
    graph = artifacts.evaluation
    if graph is None:
        raise BadInput(
            "there is no evaluation model, which an inference model is a part of. Generate it too."
        )
    parameters = {p.name: p for p in artifacts.checkpoint.parameters}
    # A model that carries its own training, with nothing for an optimizer to train, is evaluated without a loss.
    whole = not any(p.trainable for p in parameters.values())
    chosen = tuple(outputs) or (graph.outputs if whole else default_outputs(graph, parameters.keys()))
    imported = opsets_imported(graph.nodes)
    opset = imported.get("", 0)
    pruned, tensors = with_stored_weights(with_quantization_pairs(prune(graph, chosen), opset), opset)
    imported = {d: v for d, v in imported.items() if d != MINBUILD or has_domain(pruned, d)}
    values = next(p.values for p in program.procedures if p.name == "eval")
    used = {name for node in pruned.nodes for name in names_read(node)}
    inner = {n: p.data for n, p in parameters.items() if held is not None and n in used and n not in held}
    lacking = sorted(n for n, data in inner.items() if data is None)
    if lacking:
        raise BadInput(f"parameter '{lacking[0]}' has no values yet: the checkpoint is nominal.")
    stored = {n: data for n, data in inner.items() if data is not None}
    holes = {
        n: TensorType(p.element, p.shape) for n, p in parameters.items() if n in used and n not in stored
    }
    inputs = {n: t.substituted(fixed or {}) for n, t in pruned.inputs.items() if n not in parameters}
    pruned = replace(pruned, inputs=inputs, initializers={**pruned.initializers, **stored})
    types = {name: values[name].type for name in chosen}
    imported |= {d: v for d, v in opsets_imported(pruned.nodes).items() if d in ("", MICROSOFT)}
    pieces = template_file(pruned, types, imported, holes, tensors)
    sizes = {p.name: prod(p.shape) * p.element.size for p in artifacts.checkpoint.parameters}
    size = sum(len(p) if isinstance(p, bytes) else sizes[p] for p in pieces)
    if size > MOST_IN_FILE:
        raise BadInput(
            f"the inference model takes {size:,} bytes, and an ONNX file ends at 2 GiB. Leave the export out, or "
            "ask for outputs that need fewer parameters."
        )
    return Inference(pieces, chosen)


def export_model(
    artifacts: TrainingArtifacts,
    trained: Checkpoint,
    outputs: Sequence[str],
    ops_folders: tuple[Path, ...] = (),
) -> tuple[Inference, bytes]:
    """The inference model of a artifacts, and its file with the parameters of the checkpoint `trained`. `artifacts`
    are the model's, `outputs` the names of values (none: the inputs of the loss), `ops_folders` hold operators of the
    user. Raises BadInput and Unsupported."""
    made = inference(artifacts, lower(artifacts, registry(ops_folders), {}), outputs)
    data = {p.name: p.data for p in trained.parameters if p.data is not None}
    shapes = {p.name: p.shape for p in artifacts.checkpoint.parameters}
    for name in (piece for piece in made.pieces if isinstance(piece, str)):
        if name not in data or data[name].shape != shapes[name]:
            found = f"has it as {list(data[name].shape)}" if name in data else "does not have its values"
            raise BadInput(
                f"parameter '{name}' of shape {list(shapes[name])}: the checkpoint {found}. Give one of this model."
            )
    return made, made.file(data)


def prune(graph: Graph, outputs: Sequence[str]) -> Graph:
    """The nodes, inputs and initializers without which `outputs` are not made. Raises BadInput for a name that no
    node makes."""
    made = {name for node in graph.nodes for name in node.outputs if name}
    unknown = [name for name in outputs if name not in made]
    if unknown:
        raise BadInput(
            f"{graph.source}: no node makes '{unknown[0]}', so it cannot be an output. Nearest the end are: "
            f"{listed(n for node in graph.nodes[-4:] for n in node.outputs if n)}."
        )
    needed, nodes = set(outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed |= set(names_read(node))
    return replace(
        graph,
        nodes=tuple(reversed(nodes)),
        inputs={n: t for n, t in graph.inputs.items() if n in needed},
        outputs=tuple(outputs),
        initializers={n: a for n, a in graph.initializers.items() if n in needed},
    )


def default_outputs(graph: Graph, parameters: Iterable[str]) -> tuple[str, ...]:
    """The values that the loss, the graph's first output, is computed from; and the other outputs that need nothing
    which only the loss needs, such as labels. Raises BadInput where that is undetermined."""
    way = _ForwardPath(graph, frozenset(parameters))
    scores = way.scores()
    if not scores:
        raise BadInput(
            f"{graph.source}: what the loss is taken of cannot be told from what else it needs. "
            "Name the outputs of the inference model with --export-output."
        )
    others = [n for n in graph.outputs[1:] if n in way.trained and not way.reached[n] & way.labels]
    return tuple(dict.fromkeys((*scores, *others)))


class _ForwardPath:
    """The paths of parameters and inputs to the loss."""

    def __init__(self, graph: Graph, parameters: frozenset[str]) -> None:
        self.graph, self.parameters = graph, parameters
        self.reached: dict[str, frozenset[str]] = {}  # the user inputs that a value depends on
        self.trained: set[str] = set()  # values that depend on parameters
        for name in graph.inputs:
            self.reached[name] = frozenset() if name in parameters else frozenset({name})
        for node in graph.nodes:
            reads = names_read(node)
            found = frozenset().union(*(self.reached.get(n, frozenset()) for n in reads))
            self.reached.update((n, found) for n in node.outputs)
            if any(n in parameters or n in self.trained for n in reads):
                self.trained.update(n for n in node.outputs if n)
        self.labels: frozenset[str] = frozenset()

    def scores(self) -> tuple[str, ...]:
        """The values that meet the labels. Labels are the inputs that come last: behind a value which everything
        that is trained goes through."""
        loss = self.graph.outputs[0] if self.graph.outputs else ""
        everything = self.reached.get(loss, frozenset())
        cuts = [name for name in self.cuts(loss) if self.reached[name] != everything]
        if not cuts:
            return ()
        self.labels = everything - self.reached[cuts[-1]]
        meet = [
            name
            for node in self.to(loss)
            if self.reached[node.outputs[0]] & self.labels
            for name in sorted(names_read(node))
            if name in self.trained and not self.reached[name] & self.labels
        ]
        # Without parameters on the way from the last such value to the labels, what is there belongs to the loss.
        ends = (cuts[-1],) if not self.parameters_between(cuts[-1], meet) else tuple(dict.fromkeys(meet))
        if self.trains_on_labels(loss):
            ends = self.compared(loss) or ends
        return tuple(dict.fromkeys(self.before_loss(name) for name in ends))

    def trains_on_labels(self, loss: str) -> bool:
        """True if labels, or what is made of them, meet parameters, as the words that a decoder reads."""
        return any(
            self.reached[node.outputs[0]] & self.labels and self.parameters.intersection(names_read(node))
            for node in self.to(loss)
        )

    def compared(self, loss: str) -> tuple[str, ...]:
        """The values that meet labels behind the last parameter."""
        read_before, found = set[str](), list[str]()
        for node in reversed(self.to(loss)):
            reads = names_read(node)
            if read_before.intersection(node.outputs) or self.parameters.intersection(reads):
                read_before.update(reads)
            elif any(n not in self.trained and self.reached.get(n, frozenset()) & self.labels for n in reads):
                found += [n for n in sorted(reads) if n in self.trained]
        return tuple(dict.fromkeys(reversed(found)))

    def to(self, name: str) -> list:  # type: ignore[type-arg]
        """The nodes that make `name`, in order."""
        return list(prune(self.graph, (name,)).nodes)

    def cuts(self, loss: str) -> list[str]:
        """The values that all that depends on parameters goes through on its way to the loss, in order."""
        nodes = self.to(loss)
        last: dict[str, int] = {}  # the node that reads a value last
        for i, node in enumerate(nodes):
            last.update((n, i) for n in names_read(node) if n in self.trained)
        found, reach = [], -1
        for i, node in enumerate(nodes):
            used = [n for n in node.outputs if n in last]
            # Nothing that was made before is read behind this node.
            if len(used) == 1 and used[0] in self.trained and reach <= i and self.reached[used[0]]:
                found.append(used[0])
            reach = max([reach, *(last[n] for n in used)])
        return found

    def parameters_between(self, start: str, ends: Sequence[str]) -> bool:
        """True if `ends` are made of `start` and further parameters."""
        needed = set(ends) - {start}
        for node in reversed(self.graph.nodes):
            if needed.intersection(node.outputs):
                reads = set(names_read(node))
                if reads & self.parameters:
                    return True
                needed |= reads - {start}
        return False

    def before_loss(self, name: str) -> str:
        """The value that `name` is made of, if it is a loss's own."""
        while _OF_LOSS.fullmatch(name):
            maker = next(node for node in self.graph.nodes if name in node.outputs)
            before = [n for n in names_read(maker) if n in self.trained]
            if len(before) != 1 or set(names_read(maker)) & self.parameters:
                break
            name = before[0]
        return name
