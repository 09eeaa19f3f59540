"""The requirements of a set of artifacts: every operator with its versions, types and features, and what stands in
the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minbuild.authoring.load import load
from minbuild.errors import Unsupported
from minbuild.escape import printable
from minbuild.ir import Graph, Node, Procedure, TrainingArtifacts
from minbuild.ops import Registry, registry
from minbuild.passes.analysis.instruction_selection import Selection, select_kernels
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize

_UNNAMED = "(unnamed)"


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One operator at one version: how often, where, and what becomes of it. `types` and `features` are those
    of the kernels it needs; `kernels` counts nodes that reach the device, the others are computed or renamed
    away when the trainer is built."""

    title: str
    version: int
    nodes: int
    kernels: int | None  # None where it is not known, because something is not supported
    files: tuple[str, ...]
    types: tuple[str, ...]
    features: tuple[str, ...]
    example: str
    supported: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """The result. `findings` are what no kernel serves, all of them; `notes` are repairs and remarks."""

    operators: tuple[OperatorUse, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]  # name -> sha256
    free: tuple[str, ...] = ()  # dimensions


@dataclass
class _Use:
    """The kernels and types that one operator needs, while they are being collected."""

    nodes: set[tuple[str, str]] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)


def scan(path: Path, ops_folders: tuple[Path, ...] = ()) -> Scan:
    """Everything the artifacts ask for. Raises BadInput; what is not supported is in the result."""
    operators = registry(ops_folders)
    artifacts = load(path, operators)
    graphs = artifacts.graphs
    uses, findings, free = _uses(artifacts, operators)
    rows = _rows(graphs, operators, uses)
    return Scan(rows, findings, artifacts.notes, dict(sorted(artifacts.digests.items())), free)


def _uses(
    artifacts: TrainingArtifacts, operators: Registry
) -> tuple[Mapping[tuple[str, str], _Use] | None, tuple[str, ...], tuple[str, ...]]:
    """(file, node) -> what it needs on the device, or None when that is undetermined; findings; free
    dimensions."""
    try:
        program = optimize(lower(artifacts, operators, {}), operators)
    except Unsupported as error:
        return None, error.findings, ()
    findings: list[str] = []
    found: dict[tuple[str, str], _Use] = defaultdict(_Use)
    for procedure in program.procedures:
        try:
            for selection in select_kernels(procedure, operators):
                _collect(found[procedure.source, selection.call.node], selection, procedure)
        except Unsupported as error:
            findings += error.findings
    return (None if findings else found), tuple(findings), program.symbols


def _collect(use: _Use, selection: Selection, procedure: Procedure) -> None:
    names = (*selection.call.inputs, *selection.call.outputs)
    use.types |= {procedure.values[n].type.element.label for n in names if n and n in procedure.values}
    use.features |= selection.features


def _rows(
    graphs: Iterable[Graph], operators: Registry, uses: Mapping[tuple[str, str], _Use] | None
) -> tuple[OperatorUse, ...]:
    nodes: dict[tuple[str, int], list[tuple[Graph, Node]]] = defaultdict(list)
    for graph in graphs:
        for node in graph.nodes:
            nodes[node.title, node.version].append((graph, node))
    return tuple(
        _row(title, version, found, operators, uses) for (title, version), found in sorted(nodes.items())
    )


def _row(
    title: str,
    version: int,
    found: list[tuple[Graph, Node]],
    operators: Registry,
    uses: Mapping[tuple[str, str], _Use] | None,
) -> OperatorUse:
    asked = [uses[g.source, n.name] for g, n in found if uses is not None and (g.source, n.name) in uses]
    files = Counter(g.source for g, _ in found)
    return OperatorUse(
        title,
        version=version,
        nodes=len(found),
        kernels=None if uses is None else len(asked),
        files=tuple(sorted(files)),
        types=tuple(sorted({t for use in asked for t in use.types})),
        features=tuple(sorted({f for use in asked for f in use.features})),
        example=next((n.name for _, n in found if n.name), _UNNAMED),
        supported=operators.find(found[0][1].domain, found[0][1].op_type) is not None,
    )


# ------------------------------------------------------------------------------------------------ as text


def as_dict(result: Scan) -> dict[str, Any]:
    """The result as plain data, for JSON."""
    return {
        "operators": [asdict(row) for row in result.operators],
        "findings": list(result.findings),
        "notes": list(result.notes),
        "files": dict(result.files),
        "free_dimensions": list(result.free),
    }


def print_scan(result: Scan, console: Console) -> None:
    """The result as a table, then notes and findings."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, side in (
        ("Operator", "left"),
        ("Opset", "right"),
        ("Nodes", "right"),
        ("On the device", "left"),
    ):
        table.add_column(title, justify=side, overflow="fold")  # type: ignore[arg-type]
    for title in ("Types", "Features", "Files", "Example"):
        table.add_column(title, overflow="fold")
    for row in result.operators:
        cells = (row.title, str(row.version), str(row.nodes), _fate(row), ", ".join(row.types))
        more = (", ".join(row.features), ", ".join(map(_short, row.files)), row.example)
        table.add_row(
            *(Text(printable(cell)) for cell in (*cells, *more)), style="" if row.supported else "bold red"
        )
    console.print(table)
    total = sum(row.nodes for row in result.operators)
    kernels = [row.kernels for row in result.operators if row.kernels is not None]
    reach = f", {sum(kernels)} of them reach the device" if kernels else ""
    free = f"; free dimensions: {', '.join(result.free)}" if result.free else ""
    console.print()
    console.print(Text(printable(f"{len(result.operators)} operators, {total} nodes{reach}{free}.")))
    for note in result.notes:
        console.print(Text(printable(f"note: {note}")), soft_wrap=True)


def _fate(row: OperatorUse) -> str:
    if not row.supported:
        return "not supported"
    if row.kernels is None:
        return "supported"
    if row.kernels == 0:
        return "nothing"
    return "kernels" if row.kernels == row.nodes else f"{row.kernels} of {row.nodes}"


def _short(file: str) -> str:
    return file.removesuffix(".onnx").removesuffix("_model")


def check(result: Scan) -> None:
    """Raise Unsupported, with everything that was found, unless every node is served."""
    if result.findings:
        raise Unsupported(list(result.findings))
