"""Binary -> SizeReport: the numbers of a trimmed and a full build, measured."""

from __future__ import annotations

import gzip
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from minbuild import __version__
from minbuild import ir as model
from minbuild.analysis.attribution import Attribution, Piece, attribute
from minbuild.analysis.categories import short
from minbuild.analysis.memory_regions import regions_of, static_of
from minbuild.analysis.session_memory import arenas_of, smaller_of
from minbuild.analysis.target_result import TargetResult
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.codegen.package_layout import library_path
from minbuild.ir.dims import evaluate, product
from minbuild.ir.mapped import sha256_of
from minbuild.ir.pieces import raw_bytes
from minbuild.ir.size_report import (
    KINDS,
    SCHEMA,
    Group,
    ModelReport,
    ModelTensor,
    Named,
    Persistent,
    Row,
    SectionRow,
    SizeReport,
    Sizes,
    Smaller,
    TargetReport,
    TypeRow,
)
from minbuild.ops.quantization.dequantize import DEQUANTIZE
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.phases import Uses, phases_of, uses_of

_UNTYPED = "void"  # template argument of what has no elements there


@dataclass(frozen=True, slots=True)
class Use:
    """A node of the model and its operator, `domain:Name`."""

    node: str
    operator: str


def measure(
    models: Mapping[str, CompiledModel], results: Sequence[TargetResult], notes: tuple[str, ...] = ()
) -> SizeReport:
    """The report on all targets, one of `results` for each, for `models` by their names, with further `notes`. Raises
    ToolchainFailed when a file's bytes cannot all be attributed."""
    trimmed = results[0].libraries.trimmed
    facts = tuple(_facts(name, compiled, notes, trimmed) for name, compiled in models.items())
    if trimmed.compiled:
        facts = tuple(replace(each, plan_bytes=0) for each in facts)
    uses = [_uses(compiled, f"{name}: " if len(models) > 1 else "") for name, compiled in models.items()]
    stems = sorted({stem for each in uses for stem in each})
    together = {stem: tuple(use for each in uses for use in each.get(stem, ())) for stem in stems}
    phases = uses_of((compiled.artifacts, compiled.plan) for compiled in models.values())
    if len(facts) == 1:
        return build_report(facts[0], together, results, phases)
    whole = total_figures(facts, len(trimmed.kernels))
    return replace(build_report(whole, together, results, phases), models=facts)


def without_measured_prices(report: SizeReport) -> SizeReport:
    """`report` without the times that were measured of budgets of RAM, which are others every time."""

    def estimated(facts: ModelReport) -> ModelReport:
        price = facts.ram_price
        return replace(facts, ram_price=replace(price, measured=None)) if price else facts

    models = tuple(estimated(facts) for facts in report.models)
    return replace(report, model=estimated(report.model), models=models)


def _facts(name: str, compiled: CompiledModel, notes: tuple[str, ...], library: BuiltLibrary) -> ModelReport:
    return ModelReport(
        name=name,
        minbuild=__version__,
        files=tuple(sorted(compiled.artifacts.digests.items())),
        sizes=tuple(compiled.largest.items()),
        arenas=arenas_of(compiled, library.compiled),
        persistent=persistent_of(compiled.plan, library.rolls_back),
        plan_bytes=len(compiled.plan_bytes),
        checkpoint_bytes=len(compiled.initial_checkpoint),
        kernels=len(compiled.plan.kernels),
        full_kernels=len(compiled.registry.all_kernels()),
        notes=(*compiled.artifacts.notes, *notes),
        smaller=smaller_of(compiled, library.compiled),
        tensors=tensors_of(compiled),
        ram_price=compiled.ram_price,
    )


def tensors_of(compiled: CompiledModel) -> tuple[ModelTensor, ...]:
    """The tensors of the checkpoint, `unused` by the graphs that the device has or not, and quantized weights, which
    are constants of the plan; the largest first."""
    uses = {parameter.name: parameter.role.name.lower() for parameter in compiled.plan.parameters}
    found = (
        ModelTensor(
            p.name,
            p.element.label,
            tuple(p.shape),
            uses.get(p.name, "unused"),
            prod(p.shape) * p.element.size,
        )
        for p in compiled.artifacts.checkpoint.parameters
    )
    return tuple(sorted((*found, *_quantized(compiled)), key=lambda tensor: (-tensor.bytes, tensor.name)))


def _quantized(compiled: CompiledModel) -> tuple[ModelTensor, ...]:
    """Codes, scales, zero points and tables of weights that stay quantized, where the plan holds them."""
    found: dict[str, ModelTensor] = {}  # by contents: the plan holds what graphs share once
    for procedure in compiled.program.procedures:
        for call in procedure.calls:
            for i, name in enumerate(call.inputs if call.op == DEQUANTIZE else ()):
                name = procedure.alias.get(name, name)
                value = procedure.values[name] if name else None
                if value is None or value.constant is None:
                    continue
                label, shape = value.type.element.label, value.constant.shape
                if i == 0:
                    label = ("int" if call.attributes["signed"] else "uint") + str(call.attributes["bits"])
                    shape = call.attributes["shape"]
                sizes = tuple(int(d) for d in shape)
                row = ModelTensor(name, label, sizes, "constant", value.constant.nbytes)
                found.setdefault(sha256_of(raw_bytes(value.constant)), row)
    return tuple(found.values())


def _uses(compiled: CompiledModel, prefix: str) -> dict[str, tuple[Use, ...]]:
    found = uses_by_stem(compiled.plan, compiled.artifacts.graphs)
    return {stem: tuple(Use(prefix + use.node, use.operator) for use in uses) for stem, uses in found.items()}


def _flags(command: str) -> tuple[str, ...]:
    """The options in a compile command, without the program and the names of files."""
    words = command.split()
    return (
        tuple(w for w in words[: words.index("-c")] if w.startswith("-")) if "-c" in words else tuple(words)
    )


def build_report(
    facts: ModelReport,
    uses: Mapping[str, Sequence[Use]],
    results: Sequence[TargetResult],
    phases: Uses = Uses({}, {}),  # noqa: B008 (frozen)
) -> SizeReport:
    """The report of one model, described by `facts`, on the targets of `results`, one or more. `uses` maps the stem of
    each kernel file to the nodes that run its kernels, see `uses_by_stem`; `phases` assigns them to phases of training.
    Raises ToolchainFailed when a file's bytes cannot all be attributed."""
    return SizeReport(SCHEMA, facts, tuple(_target_report(r, facts, uses, phases) for r in results))


def uses_by_stem(plan: model.Plan, graphs: Iterable[model.Graph]) -> dict[str, tuple[Use, ...]]:
    """Kernel file -> the distinct nodes whose steps run its kernels, over all routines, in plan order.
    `graphs` hold the operators of the nodes; a node of none of them is listed under the name of the kernel
    file."""
    titles = {node.name: node.title for graph in graphs for node in graph.nodes}
    found: dict[str, dict[Use, None]] = defaultdict(dict)
    for routine in plan.routines:
        for step in routine.steps:
            stem = plan.kernels[step.kernel].stem
            found[stem][Use(step.node, titles.get(step.node, stem))] = None
    return {stem: tuple(names) for stem, names in sorted(found.items())}


def persistent_of(plan: model.Plan, rolls_back: bool = True) -> Persistent:
    """Bytes of the persistent region of `plan` by what they hold; padding, counters and, where a session `rolls_back`
    failed calls, the copy for that are `other`."""
    sizes = dict.fromkeys(model.Role, 0)
    for parameter in plan.parameters:
        tensor = plan.tensors[parameter.tensor]
        sizes[parameter.role] += evaluate(product(list(tensor.shape)), {}) * tensor.element.size
    trained, moments = plan.trainable_bytes, plan.moment_bytes
    state = sizes[model.Role.BUFFER]
    copy = plan.rollback_bytes if rolls_back else 0
    return Persistent(
        parameters=trained,
        gradients=plan.gradient_bytes,
        optimizer=moments,
        state=state,
        other=plan.persistent_bytes + copy - trained - plan.gradient_bytes - moments - state,
        frozen=sizes[model.Role.FROZEN],
    )


def total_figures(models: Sequence[ModelReport], kernels: int) -> ModelReport:
    """Several models that share a library of `kernels` kernels and run one at a time: memory is that of the largest."""
    return ModelReport(
        name=", ".join(m.name for m in models),
        minbuild=models[0].minbuild,
        files=tuple((f"{m.name}/{file}", digest) for m in models for file, digest in m.files),
        sizes=tuple((f"{m.name}: {symbol}", size) for m in models for symbol, size in m.sizes),
        arenas=tuple(replace(a, graph=f"{m.name}: {a.graph}") for m in models for a in m.arenas),
        persistent=max((m.persistent for m in models), key=lambda p: p.total),
        plan_bytes=sum(m.plan_bytes for m in models),
        checkpoint_bytes=sum(m.checkpoint_bytes for m in models),
        kernels=kernels,
        full_kernels=models[0].full_kernels,
        notes=tuple(f"{m.name}: {note}" for m in models for note in m.notes),
        smaller=tuple(_smaller_together(models)),
        tensors=tuple(replace(t, name=f"{m.name}: {t.name}") for m in models for t in m.tensors),
    )


def _smaller_together(models: Sequence[ModelReport]) -> Iterator[Smaller]:
    """The largest arena of all models where their batches are smaller; a model without free batches stays as it is."""
    there = {(s.symbol, s.size): s for m in models for s in m.smaller}
    for symbol, size in sorted(there, key=lambda key: (key[1], key[0])):
        arenas = (
            next((s.arena for s in m.smaller if (s.symbol, s.size) == (symbol, size)), m.arena)
            for m in models
        )
        yield Smaller(symbol, size, max(arenas))


def _target_report(
    result: TargetResult, facts: ModelReport, uses: Mapping[str, Sequence[Use]], phases: Uses
) -> TargetReport:
    target, what_if = result.libraries.target, result.what_if
    trimmed, full = result.libraries.trimmed, result.libraries.full
    owners = attribute(trimmed.binary, trimmed.owners, trimmed.kernels)
    full_owners = attribute(full.binary, full.owners, full.kernels)
    static = static_of(trimmed.binary)
    times = result.times.operators if result.times else {}
    rows = tuple(
        replace(r, leave_one_out=what_if.leave_one_out.get(r.name), time=times.get(r.name))
        if r.kind == "operator"
        else r
        for r in _rows(owners, trimmed.kernels, uses)
    )
    return TargetReport(
        target=str(target),
        trimmed=_sizes(trimmed.binary),
        full=_sizes(full.binary),
        groups=_groups(owners, full_owners),
        rows=rows,
        sections=_sections(full.binary, trimmed.binary),
        static=static,
        ram=static.total + facts.arena + facts.persistent.total + result.session.total,
        exports=trimmed.binary.exports,
        imports=trimmed.binary.imports,
        verification=result.verification,
        toolchain=trimmed.built.toolchain,
        flags=_flags(trimmed.built.commands[0]),
        digest=hashlib.sha256(trimmed.binary.data).hexdigest(),
        files=(("Library", library_path(target)),),
        waterfall=what_if.waterfall,
        phases=phases_of(rows, phases),
        suggestions=what_if.suggestions,
        types=types_of(trimmed.kernels, full.kernels),
        regions=regions_of(full.binary, trimmed.binary),
        session=result.session,
        features=result.features,
        timing=result.times.timing if result.times else None,
    )


def types_of(trimmed: Sequence[model.Kernel], full: Sequence[model.Kernel]) -> tuple[TypeRow, ...]:
    """A row per kernel file of either build."""
    found: dict[str, tuple[list[model.Kernel], list[model.Kernel]]] = defaultdict(lambda: ([], []))
    for build, kernels in enumerate((trimmed, full)):
        for kernel in kernels:
            found[kernel.stem][build].append(kernel)

    def types(kernels: Sequence[model.Kernel]) -> tuple[str, ...]:
        return tuple(sorted({name for kernel in kernels for name in kernel.types} - {_UNTYPED}))

    return tuple(
        TypeRow(stem, types(ours), types(theirs), len(ours), len(theirs))
        for stem, (ours, theirs) in sorted(found.items())
    )


def _sizes(binary: model.Binary) -> Sizes:
    loaded = sum(s.file_size for s in binary.sections if s.allocated)
    return Sizes(len(binary.data), loaded, len(gzip.compress(binary.data, 9, mtime=0)))


def _groups(trimmed: Attribution, full: Attribution) -> tuple[Group, ...]:
    def bytes_of(attribution: Attribution, kind: str) -> int:
        return sum(s.bytes for s in attribution.shares if s.owner.kind == kind)

    groups = (Group(k, title, bytes_of(trimmed, k), bytes_of(full, k)) for k, title in KINDS.items())
    return tuple(g for g in groups if g.bytes or g.full_bytes)


def _rows(
    attribution: Attribution, kernels: Sequence[model.Kernel], uses: Mapping[str, Sequence[Use]]
) -> tuple[Row, ...]:
    """A row per owner, and one without bytes for each kernel file whose code is all shared."""
    types: dict[str, set[str]] = defaultdict(set)
    for kernel in kernels:
        types[kernel.stem].update(kernel.types)

    def operator(stem: str, size: int, pieces: Sequence[Piece]) -> Row:
        nodes = tuple(dict.fromkeys(use.node for use in uses.get(stem, ())))
        titles = tuple(sorted({use.operator for use in uses.get(stem, ())}))
        return Row(
            "operator",
            name=stem,
            bytes=size,
            users=titles,
            types=tuple(sorted(types[stem])),
            nodes=nodes,
            symbols=_named(pieces),
        )

    owned = {s.owner.name: s for s in attribution.shares if s.owner.kind == "operator"}
    rows = [operator(stem, share.bytes, share.pieces) for stem, share in owned.items()]
    rows += [operator(stem, 0, ()) for stem in sorted({k.stem for k in kernels} - set(owned))]
    for share in attribution.shares:
        owner = share.owner
        if owner.kind != "operator":
            named = _named(share.pieces)
            row = Row(owner.kind, owner.name, share.bytes, owner.operators, types=(), nodes=(), symbols=named)
            rows.append(row)
    return tuple(rows)


def _named(pieces: Sequence[Piece]) -> tuple[Named, ...]:
    return tuple(
        Named(tuple(short(name) for name in p.names), p.bytes, p.section, p.offset) for p in pieces if p.names
    )


def _sections(full: model.Binary, trimmed: model.Binary) -> tuple[SectionRow, ...]:
    """Every section of either build in file order, those of one name added up, then what lies outside all
    sections: so the file columns add up to the files."""
    names = dict.fromkeys(s.name for binary in (trimmed, full) for s in binary.sections)

    def of(binary: model.Binary, name: str) -> tuple[int, int]:
        found = [s for s in binary.sections if s.name == name]
        return sum(s.file_size for s in found), sum(s.size for s in found if s.allocated)

    def outside(binary: model.Binary) -> int:
        return len(binary.data) - sum(s.file_size for s in binary.sections)

    pairs = ((name, of(full, name), of(trimmed, name)) for name in names)
    rows = tuple(SectionRow(name, f[0], t[0], f[1], t[1]) for name, f, t in pairs)
    return (*rows, SectionRow("headers and padding", outside(full), outside(trimmed), 0, 0))
