"""Kernel selection, the contents of a library: what the plans of its models need, and what else the user asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minbuild.compat.ort_config.requirements import Requirements
from minbuild.compat.ort_config.type_reduction import type_name
from minbuild.errors import BadInput
from minbuild.ir import ElementType, Kernel, Plan
from minbuild.ir.mapped import FileBytes
from minbuild.ops import Registry
from minbuild.ops.core.definition import STORAGE_TYPES, KernelFunction, Op
from minbuild.options.build_options import COMPILED, ON, ONE, SAME, BuildOptions
from minbuild.options.did_you_mean import did_you_mean
from minbuild.options.graph_selection import select_graphs, updates
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.large_products import widens
from minbuild.planning.library_contents import (
    CHECKSUMS,
    FINGERPRINT,
    FINITE,
    FLUSH,
    ROLLBACK,
    SAFETY,
    LibraryContents,
)
from minbuild.planning.loop_variants import with_loop_variants
from minbuild.planning.plan_encoding import (
    EXPRESSIONS,
    dense_form,
    encode_plan,
    expressions_of,
    is_dense,
    is_wide,
)

_SMALLEST_PANEL, _LARGEST_PANEL = (
    256,
    16384,
)  # bytes; a tile of the widest vectors, twice; as without a budget


@dataclass(frozen=True, slots=True)
class ExtraRequirements:
    """Requirements of a library beyond its models: operators by title ("Conv", "com.microsoft:ConvGrad"), those of
    configurations; and bounds for it: operators it must not have, element types it may have (empty: all)."""

    include: tuple[str, ...] = ()
    required: Requirements | None = None
    exclude: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


def contents_of(
    models: Sequence[CompiledModel],
    extra: ExtraRequirements = ExtraRequirements(),  # noqa: B008 (frozen)
    note: Callable[[str], None] = lambda text: None,
    build_options: BuildOptions = BuildOptions(),  # noqa: B008 (frozen)
) -> LibraryContents:
    """The contents for these models, extra requirements and build options; `note` is called for requirements that add
    nothing. `models` are compiled; `extra` are operators, types and components beside their needs; `build_options`
    limit the rest. Raises BadInput where a wish cannot be had."""
    registry = models[0].registry
    kernels = {k for m in models for k in m.plan.kernels}
    features = {f for m in models for f in m.plan.features}
    _check_excluded(models, extra, registry)
    _check_types(kernels, extra, registry)
    extra_kernels, extra_features = _wished(extra, registry, note)
    used = {name for m in models for name in expressions_of(m.plan_bytes)}
    held = kernels | extra_kernels
    _note_unused(build_options, held, note)
    every = build_options.shape_ops == "all"
    if build_options.kernel_features == "all":
        stems = {k.stem for k in held}
        extra_features |= {f for f in registry.all_features() if f.split(".")[0] in stems}
    return LibraryContents(
        tuple(sorted(held, key=lambda k: (k.stem, k.function, k.types))),
        frozenset(features | extra_features),
        every or any(m.plan.symbols for m in models),
        file_io=build_options.file_io == ON,
        error_messages=build_options.error_messages == "text",
        checkpoint_writing=build_options.checkpoint_writing == ON,
        safety=safety_of(build_options),
        expressions=tuple(name for name in EXPRESSIONS if every or name in used),
        loops=4 if every else max(m.plan.loops for m in models),
        draws=every or any(m.plan.draw_bytes for m in models),
        frozen_parameters=every or bool(extra_kernels) or any(m.plan.frozen_parameters for m in models),
        wide=any(is_wide(m.plan_bytes) for m in models),
        fused_updates=models[0].plan.fused_updates,
        idle_moments=_idle_moments([m.plan for m in models], bool(extra_kernels)),
        dense=0 if build_options.flavor == COMPILED else max(dense_form(m.plan_bytes) for m in models),
        components=frozenset(part for m in models for part in m.components),
        digest=models[0].digest if len(models) == 1 else f"{len(models)} models",
        compiled_plan=_compiled_plan(models) if build_options.flavor == COMPILED else b"",
        straight=models[0].straight if build_options.flavor == COMPILED else frozenset(),
        threads=max(m.threads for m in models),
        compact_checkpoints=any(m.compact_checkpoint for m in models),
        panel_bytes=panel_bytes(build_options.stack_budget),
        one_variant=with_loop_variants(models, build_options, bool(extra_kernels)).loop_variants == ONE,
        avx512=build_options.avx512 == ON and widens(held, features | extra_features),
        reads_trainable=not all(updates(m.options.graphs) for m in models),
    )


def _idle_moments(plans: Sequence[Plan], more: bool) -> int:
    """`LibraryContents.idle_moments` for the plans, and for others if there are `more` kernels than theirs."""
    if not any(plan.idle_moments for plan in plans):
        return 0
    return 2 if more or any(plan.moment_bytes for plan in plans) else 1


def _compiled_plan(models: Sequence[CompiledModel]) -> FileBytes:
    """The plan to compile in. Raises BadInput for several models: each has its own."""
    if len(models) > 1:
        raise BadInput(
            f"--flavor compiled: a library has one plan, and there are {len(models)} models. Reduce each by itself, or "
            "build with --flavor interpreted."
        )
    model = models[0]
    if is_dense(model.plan_bytes):  # tables are made of the plain encoding
        return encode_plan(model.plan, model.largest, kernel_names=model.options.kernel_names)
    return model.plan_bytes


def panel_bytes(stack_budget: str) -> int:
    """The panel of a matrix product that leaves half of a stack to everything else; 0 without a budget."""
    if not stack_budget.isdecimal():
        return 0
    half = max(_SMALLEST_PANEL, min(_LARGEST_PANEL, int(stack_budget) // 2))
    return 1 << (half.bit_length() - 1)


def safety_of(build_options: BuildOptions) -> frozenset[str]:
    """The members of SAFETY that the options leave on."""
    enabled = {
        ROLLBACK: build_options.rollback == ON,
        FINITE: build_options.checks_gradients,
        CHECKSUMS: build_options.checkpoint_checks == ON,
        FINGERPRINT: build_options.checkpoint_checks == ON and build_options.accept_checkpoint == SAME,
        FLUSH: build_options.denormals == "flush",
    }
    return frozenset(name for name in SAFETY if enabled[name])


def _check_excluded(models: Sequence[CompiledModel], extra: ExtraRequirements, registry: Registry) -> None:
    for title in extra.exclude:
        op = _find(title, registry, "--exclude-op")
        for model in models:
            for source, node in _nodes(model, op):
                raise BadInput(
                    f"--exclude-op {title}: {source}: node '{node}' needs it. Leave the option out, or the operator "
                    "out of the model."
                )


def _nodes(model: CompiledModel, op: Op) -> Iterator[tuple[str, str]]:
    """File and name of the nodes of an operator, those that others are made of among them."""
    artifacts = select_graphs(model.artifacts, model.options.graphs)
    for graph in filter(None, (artifacts.training, artifacts.evaluation, artifacts.optimizer)):
        yield from (
            (graph.source, n.name) for n in graph.nodes if (n.domain, n.op_type) == (op.domain, op.name)
        )
    for procedure in model.program.procedures:
        yield from ((procedure.source, call.node) for call in procedure.calls if call.op == op.key)


def _check_types(kernels: Iterable[Kernel], extra: ExtraRequirements, registry: Registry) -> None:
    allowed = _allowed(extra)
    for kernel in sorted(kernels):
        if not _fits(kernel, registry.functions[kernel.function], allowed):
            labels = ", ".join(e.label for e in ElementType if e.ctype in kernel.types and e not in allowed)
            raise BadInput(f"--types {','.join(extra.types)}: the models need {kernel.symbol}. Add {labels}.")


def _allowed(extra: ExtraRequirements) -> frozenset[ElementType]:
    """Element types that kernels may have. Raises BadInput."""
    labels = {e.label: e for e in ElementType}
    for name in extra.types:
        if name not in labels:
            raise BadInput(f"--types {name}: no element type is called so. Choose from {', '.join(labels)}.")
    return frozenset(labels[name] for name in extra.types) or frozenset(ElementType)


def _fits(kernel: Kernel, function: KernelFunction, types: frozenset[ElementType]) -> bool:
    """True if a kernel is for these types. One that only moves elements is for all of a size."""
    sizes = {e.size for e in types}
    for ctype, offered in zip(kernel.types, function.types.values(), strict=False):
        element = next(e for e in offered if e.ctype == ctype)
        if not (element in types or set(offered) <= set(STORAGE_TYPES) and element.size in sizes):
            return False
    return True


# --------------------------------------------------------------------------------------- operators by name


def _wished(
    extra: ExtraRequirements, registry: Registry, note: Callable[[str], None]
) -> tuple[set[Kernel], set[str]]:
    """Kernels of the operators that are requested by name, with all their features."""
    kernels: set[Kernel] = set()
    features: set[str] = set()
    allowed, excluded = _allowed(extra), set(extra.exclude)
    asked: list[tuple[Op, frozenset[ElementType]]] = [
        (_find(title, registry, "--include-op"), allowed) for title in extra.include
    ]
    required = extra.required or Requirements({})
    for domain, _, name in required.operators:
        title = name if domain == "ai.onnx" else f"{domain}:{name}"
        if title not in excluded:
            op = _find(title, registry, "--ort-config")
            asked.append((op, allowed & _named(required, domain, name)))
    for op, types in asked:
        functions = _functions(op, registry)
        if not functions and op.decompose is not None:
            note(f"{op.title}: what it is made of depends on the model that has it; nothing is added for it.")
        for kernel in registry.all_kernels():
            if kernel.function in functions and _fits(kernel, registry.functions[kernel.function], types):
                kernels.add(kernel)
                declared = registry.functions[kernel.function].features
                features.update(f"{kernel.stem}.{name}" for name in declared)
    return kernels, features


def _named(required: Requirements, domain: str, name: str) -> frozenset[ElementType]:
    """The types that a configuration names for an operator, else for any operator, and all where it names none. Those
    of labels, indices and masks, which it does not track, come with them."""
    every = frozenset(n for types in required.operators.values() for n in types.names)
    names = required.types_of(domain, name).names or required.allowed or every
    untracked = {ElementType.INT64, ElementType.INT32, ElementType.BOOL, ElementType.UINT8}
    return frozenset(e for e in ElementType if not names or type_name(e) in names or e in untracked)


def _find(title: str, registry: Registry, option: str) -> Op:
    domain, _, name = title.rpartition(":")
    op = registry.find(domain, name)
    if op is None:
        there = sorted(o.title for o in registry.ops.values() if o.name.lower() == name.lower())
        hint = (
            f" Did you mean {there[0]}?"
            if there
            else did_you_mean(title, (o.title for o in registry.ops.values()))
        )
        raise BadInput(
            f"{option} {title}: no such operator.{hint or ' `docs/reference/operators.md` lists all that there are.'}"
        )
    return op


def _functions(op: Op, registry: Registry) -> frozenset[str]:
    """The kernel functions that the operator declares, and those of what it decomposes to."""
    found: set[str] = set()
    pending, visited = [op], {op.key}
    while pending:
        current = pending.pop()
        found.update(kernel.function for kernel in current.kernels)
        for title in current.decomposes_to:
            domain, _, name = title.rpartition(":")
            part = registry.find(domain, name)
            if part is None:
                raise BadInput(
                    f"ops/{registry.op_stems[current.key]}.py: {current.title} decomposes to {title}, which no file "
                    "defines. Correct `decomposes_to`."
                )
            if part.key not in visited:
                visited.add(part.key)
                pending.append(part)
    return frozenset(found)


def with_kernels(build_options: BuildOptions, registry: Registry) -> BuildOptions:
    """The build options with files of kernels where operators are named, in any case of letters. Raises BadInput."""
    speed, size = (
        _files(f"--{key}", names, registry)
        for key, names in (("speed-for", build_options.speed_for), ("size-for", build_options.size_for))
    )
    both = sorted(set(speed) & set(size))
    if both:
        raise BadInput(f"--speed-for and --size-for: both name {', '.join(both)}. Leave one of them out.")
    return replace(build_options, speed_for=speed, size_for=size)


def _note_unused(build_options: BuildOptions, held: Iterable[Kernel], note: Callable[[str], None]) -> None:
    """Notes a build option for kernels that the library lacks: it changes nothing."""
    stems = {kernel.stem for kernel in held}
    for key, names in (("speed-for", build_options.speed_for), ("size-for", build_options.size_for)):
        if names and not stems & set(names):
            files = ", ".join(f"{name}.cc" for name in names)
            note(f"--{key}: the library has no kernel of {files}; this changes nothing.")


def _files(option: str, names: Sequence[str], registry: Registry) -> tuple[str, ...]:
    stems = set(registry.stems.values())
    found: set[str] = set()
    for name in names:
        ops = [op for op in registry.ops.values() if name.lower() in (op.name.lower(), op.title.lower())]
        here = {registry.stems[function] for op in ops for function in _functions(op, registry)}
        here |= {name.lower()} & stems
        if not here:
            hint = did_you_mean(name, (*(op.name for op in registry.ops.values()), *stems))
            files = f" Files are {', '.join(sorted(stems))}."
            raise BadInput(
                f"{option} {name}: no operator with kernels, and no file of kernels, is called so.{hint or files}"
            )
        found |= here
    return tuple(sorted(found))
