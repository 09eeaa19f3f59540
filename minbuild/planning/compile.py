"""Artifacts -> everything that is known about a trainer before a compiler runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from minbuild.authoring.load import load
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.checkpoint import LARGEST_FILE, parameter_bytes, read_checkpoint, write_checkpoint
from minbuild.frontend.files import read_shared
from minbuild.ir import Plan, Program, TrainingArtifacts, fingerprint_of
from minbuild.ir.dims import symbols_in
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ir.mapped import FileBytes
from minbuild.ir.ram_price import RamPoint
from minbuild.ops import Registry, registry
from minbuild.options.build_options import AUTO
from minbuild.options.did_you_mean import listed
from minbuild.options.graph_selection import select_graphs, select_procedures
from minbuild.options.graph_selection import updates as can_update
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.fuse_updates import fuse_updates
from minbuild.passes.rewrite.loss_check import check_loss
from minbuild.passes.rewrite.native_products import take_native_products
from minbuild.planning.batch_slices import BatchSlices, batch_slices
from minbuild.planning.compiled_model import DEFAULT_LARGEST, CompiledModel, with_large_checkpoint
from minbuild.planning.faster_kernels import faster_kernels
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan, is_wide
from minbuild.planning.ram_budget import curve, fit, plan_within, ram_of
from minbuild.planning.rollback import check_refusals
from minbuild.planning.size_limits import (
    check_constants,
    check_elements,
    check_plan_constants,
    check_scratch,
    needs_wide_plan,
)
from minbuild.planning.threads import threads_of
from minbuild.uncollected import uncollected

_RAM_OF_ANY_THREADS = 1 << 25  # of which the scratch memory of all, up to 700 KB each, is a small part


@uncollected()
def compile_model(
    path: Path,
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    ops_folders: tuple[Path, ...] = (),
    log: Callable[[str], None] | None = None,
    options: PlanOptions = PlanOptions(),  # noqa: B008 (frozen)
) -> CompiledModel:
    """Read, lower, optimise and lay out the model at `path`, a folder of artifacts or an ONNX file.

    `fixed` gives free dimensions a size for good; `largest` the sizes, in elements, that the default arena is laid out
    for. `ops_folders` are folders with custom operators; `log` receives one line per pass, and per plan
    that is made for a budget; `options` are those of the plan. Raises BadInput, Unsupported and OverBudget."""
    operators = registry(ops_folders)
    artifacts = load(path, operators)
    checkpoint = _checkpoint_bytes(path, artifacts)
    return compile_artifacts(
        artifacts,
        checkpoint,
        operators,
        fixed=fixed,
        largest=largest,
        log=log,
        options=options,
    )


def compile_artifacts(
    artifacts: TrainingArtifacts,
    checkpoint: FileBytes,
    operators: Registry,
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    log: Callable[[str], None] | None = None,
    options: PlanOptions = PlanOptions(),  # noqa: B008 (frozen)
) -> CompiledModel:
    """`compile_model` of `artifacts` that are in memory.

    `checkpoint` is the file that a session starts from, as bytes, or empty where the parameters do not fit into one;
    `operators` is the registry; `fixed`, `largest`, `log` and `options` are as there. Raises BadInput, Unsupported and
    OverBudget."""
    selected = select_graphs(artifacts, options.graphs)
    check_constants(selected)
    _check_names("--dim", fixed, _free_dimensions(selected))
    program = select_procedures(lower(selected, operators, fixed), options.graphs)
    if selected.training is not artifacts.training:
        program = replace(program, fingerprint=fingerprint_of(artifacts))  # whichever graphs it has
    program = check_loss(program, operators) if options.checks_loss else program
    program = take_native_products(program, operators) if options.native_halves else program
    large = parameter_bytes(selected.checkpoint) >= LARGEST_FILE
    if not large and not can_update(options.graphs):
        checkpoint = write_checkpoint(selected.checkpoint)
    _check_names("--max-dim", largest, program.symbols)
    separate = program
    if options.updates.fused:
        program = fuse_updates(program, operators, options.updates.checked)
    optimized = optimize(program, operators, log)
    if options.updates.fused:
        check_refusals(optimized, operators)
    sizes = {s: largest.get(s, DEFAULT_LARGEST) for s in optimized.symbols}
    check_elements(optimized, sizes, fixed)
    threads = threads_of(options.threads, optimized, operators)
    kernels = replace(options.kernels, largest=sizes) if options.packs_all else options.kernels
    plan = build_plan(optimized, operators, threads, kernels)
    if options.threads == AUTO:
        threads, plan = _affordable(optimized, operators, kernels, sizes, threads, plan=plan)
    fitted = None
    points: tuple[RamPoint, ...] = ()
    without_budget = 0
    if options.ram is not None:
        usual = ram_of(plan, sizes)  # with all kernels, and the threads that --threads chooses
        if usual > options.ram:
            kernels = replace(kernels, scratch=0, largest=None)
            threads = threads if options.threads != AUTO else 1  # every thread has scratch memory of its own
            plan = build_plan(optimized, operators, threads, kernels)

        def build(each: Program, search: int = 1) -> Plan:
            made = build_plan(each, operators, threads, kernels, search)
            if log:
                log(f"--ram: a plan of {ram_of(made, sizes):,} bytes of RAM")
            return made

        def slicing(fused: bool = options.updates.fused) -> BatchSlices:
            if fused or options.checks_loss:
                option = "--updates fused" if fused else "--finite-checks loss"
                raise Unsupported([f"{option} needs the whole batch before it changes anything"])
            return batch_slices(selected, separate, operators, fixed)

        def other_updates(budget: int = options.ram) -> int | None:
            """Bytes of a plan within `budget` with fused updates, or with separate ones where they are fused; None
            where there is none."""
            fused = not options.updates.fused
            try:
                other = fuse_updates(separate, operators, options.updates.checked) if fused else separate
                found = plan_within(other, operators, sizes, budget, build, slicing=partial(slicing, fused))
                if found is not None and fused:
                    check_refusals(found[0], operators)
            except (BadInput, Unsupported):
                return None
            return found[1] if found else None

        fitted = fit(
            program,
            operators,
            sizes,
            options.ram,
            build,
            slicing=slicing,
            other_updates=other_updates,
            usual=usual,
        )
        plan = fitted.plan if fitted else plan
        points = curve(program, operators, sizes, build, slicing, usual=usual) if options.ram_curve else ()
        if usual > options.ram:
            without_budget = usual
            chosen, search = (fitted.program, fitted.search) if fitted else (optimized, 1)
            remade = partial(build_plan, chosen, operators, threads, search=search)
            plan, kernels = faster_kernels(plan, sizes, options.ram, kernels, remade)
            fitted = replace(fitted, plan=plan, ram=ram_of(plan, sizes)) if fitted else None
        if fitted and options.updates.fused:
            check_refusals(fitted.program, operators)
    check_scratch(plan, sizes, fixed)
    check_plan_constants(plan)
    wide = needs_wide_plan(plan, sizes)
    two_calls = None
    if options.updates.fused:
        two_calls = build_plan(optimize(separate, operators), operators, threads, kernels)
        wide |= needs_wide_plan(two_calls, sizes)
    model = CompiledModel(
        artifacts,
        operators,
        program,
        plan,
        plan_bytes=encode_plan(plan, sizes, wide, options.kernel_names),
        checkpoint=checkpoint,
        fixed=fixed,
        largest=sizes,
        options=replace(options, ram_curve=False),  # of what is planned again, it stays the same
        threads=threads,
        kernels=kernels,
        separate=two_calls,
        fitted=fitted,
        ram_curve=points,
        optimized=optimized,
        usual_ram=without_budget,
    )
    return with_large_checkpoint(model) if large else model


@uncollected()
def compile_models(
    folders: Sequence[Path],
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    ops_folders: tuple[Path, ...] = (),
    log: Callable[[str], None] | None = None,
    options: PlanOptions = PlanOptions(),  # noqa: B008 (frozen)
) -> tuple[CompiledModel, ...]:
    """Each of `folders` as `compile_model` does it, with the same `ops_folders`, `log` and `options`.

    Of `fixed` and `largest`, a model takes the sizes that it has dimensions for. Raises BadInput, also for a dimension
    that no model has, and Unsupported."""
    operators = registry(ops_folders)
    sets = [load(folder, operators) for folder in folders]
    free = [_free_dimensions(select_graphs(artifacts, options.graphs)) for artifacts in sets]
    if len(folders) > 1:
        together = sorted({name for names in free for name in names})
        for option, given in (("--dim", fixed), ("--max-dim", largest)):
            _check_names(option, given, together)

    def own(sizes: Mapping[str, int], names: Sequence[str]) -> Mapping[str, int]:
        return sizes if len(folders) == 1 else {name: size for name, size in sizes.items() if name in names}

    models = tuple(
        compile_artifacts(
            artifacts,
            _checkpoint_bytes(folder, artifacts),
            operators,
            fixed=own(fixed, names),
            largest=own(largest, names),
            log=log,
            options=options,
        )
        for folder, artifacts, names in zip(folders, sets, free, strict=True)
    )
    if any(is_wide(m.plan_bytes) for m in models):  # one library reads plans of one width
        return tuple(
            replace(m, plan_bytes=encode_plan(m.plan, m.largest, True, options.kernel_names)) for m in models
        )
    return models


def _affordable(
    program: Program,
    operators: Registry,
    kernels: KernelChoice,
    sizes: Mapping[str, int],
    threads: int,
    plan: Plan,
) -> tuple[int, Plan]:
    """As many of `threads` as have scratch memory of their own for a quarter of the RAM that one takes at `sizes`, and
    the plan for them. `plan` is that of `program` for all of them."""
    if threads == 1 or ram_of(plan, sizes) >= _RAM_OF_ANY_THREADS:
        return threads, plan
    most = ram_of(build_plan(program, operators, 1, kernels), sizes) * 5 // 4
    while threads > 1 and ram_of(plan, sizes) > most:
        threads //= 2
        fewer = build_plan(program, operators, threads, kernels)
        same = fewer.constants == plan.constants  # large ones are in memory once
        plan = replace(fewer, constants=plan.constants) if same else fewer
    return threads, plan


def _free_dimensions(artifacts: TrainingArtifacts) -> tuple[str, ...]:
    graphs = [artifacts.training] + ([artifacts.evaluation] if artifacts.evaluation else [])
    dims = [d for g in graphs for t in g.inputs.values() for d in t.shape or ()]
    return tuple(sorted({name for d in dims for name in symbols_in(d)}))


def _check_names(option: str, given: Mapping[str, int], free: Sequence[str]) -> None:
    """Only free dimensions can be given a size. Raises BadInput."""
    unknown = sorted(set(given) - set(free))
    if unknown:
        there = f"Free dimensions are: {listed(free)}." if free else "This model has no free dimensions."
        raise BadInput(
            f"{option} {unknown[0]}={given[unknown[0]]}: the model has no such free dimension. {there}"
        )


def _checkpoint_bytes(path: Path, artifacts: TrainingArtifacts) -> FileBytes:
    """The checkpoint as one file: the user's own bytes, unless its parameters are in a second file or in the model;
    empty where they do not fit into one."""
    if parameter_bytes(artifacts.checkpoint) >= LARGEST_FILE:
        return b""
    name = next((n for n in artifacts.digests if not n.endswith((".onnx", ".ort"))), None)
    if name is None:
        return write_checkpoint(artifacts.checkpoint)
    data = read_shared(path / name)
    try:
        read_checkpoint(data)
    except BadInput:
        return write_checkpoint(artifacts.checkpoint)
    return data
