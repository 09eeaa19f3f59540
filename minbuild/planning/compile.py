"""Artifacts -> everything that is known about a trainer before a compiler runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from minbuild.authoring.load import load
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.frontend.files import read_shared
from minbuild.ir import Plan, Program, TrainingArtifacts, fingerprint_of
from minbuild.ir.dims import symbols_in
from minbuild.ir.size_report import Arena, Smaller
from minbuild.ops import Registry, registry
from minbuild.options.build_options import AUTO, OFF
from minbuild.options.did_you_mean import listed
from minbuild.options.graph_selection import EVALUATE, EVERY, select_graphs, select_procedures
from minbuild.options.graph_selection import updates as can_update
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.fuse_updates import fuse_updates
from minbuild.passes.rewrite.loss_check import check_loss
from minbuild.planning.arena.peak_memory import arena_of, arena_peak
from minbuild.planning.batch_slices import BatchSlices, batch_slices
from minbuild.planning.compact_checkpoint import compact_checkpoint
from minbuild.planning.inference_export import inference
from minbuild.planning.library_contents import COMPONENTS
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan, is_dense, is_wide
from minbuild.planning.ram_budget import FittedPlan, fit, ram_of
from minbuild.planning.rollback import check_refusals
from minbuild.planning.size_limits import check_elements, needs_64_bits
from minbuild.planning.threads import threads_of
from minbuild.uncollected import uncollected

DEFAULT_LARGEST = 32  # of free dimensions
BATCHES = (1, 8)  # smaller ones that a report tells of
UNNAMED = "trainer"  # a model whose files have no prefix


@dataclass(frozen=True, slots=True)
class Updates:
    """The place of parameter updates: `fused` into the training step, in which gradients are `checked` to be finite, or
    in steps of their own."""

    fused: bool = False
    checked: bool = True


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Everything known before a compiler runs."""

    artifacts: TrainingArtifacts  # all that was found, also graphs that are not selected
    registry: Registry
    program: Program  # as lowered, before passes
    plan: Plan
    plan_bytes: bytes
    checkpoint: bytes
    fixed: Mapping[str, int]  # dimensions the user fixed
    largest: Mapping[str, int]  # free dimensions: what memory is made for by default
    components: frozenset[str] = frozenset()  # of COMPONENTS
    export_template: bytes | None = None  # of the inference model, for the part "export"
    graphs: tuple[str, ...] = EVERY  # of graphs.GRAPHS: what it is planned for
    threads: int = 1  # most that work on a call: what scratch memory is planned for
    packs: bool = True  # large products may have kernels that pack their matrices
    kernel_names: bool = True  # the plan has them, for errors in words
    compact_checkpoint: bytes = (
        b""  # the form of the checkpoint that devices start from, if not the checkpoint itself
    )
    fitted: FittedPlan | None = None  # what it cost to fit the plan into a budget of RAM
    straight: frozenset[str] = (
        frozenset()
    )  # kernels whose steps are straight calls where the plan is compiled in
    separate_plan: bytes = b""  # of a model with fused updates: the plan without, for the proof
    direct_plan: bytes = b""  # of a model with equal lowerings: the plan without, for the proof

    @property
    def initial_checkpoint(self) -> bytes:
        """The checkpoint that devices start from, which is what takes flash."""
        return self.compact_checkpoint or self.checkpoint

    @property
    def digest(self) -> str:
        """The name of the model in generated files."""
        return f"the model with sha256 {self.artifacts.digests[self.artifacts.training.source][:16]}"

    @property
    def name(self) -> str:
        """The model's name, from the common prefix of the artifacts; folders may be called anything."""
        stem = self.artifacts.training.source.rpartition(".")[0]
        return stem.removesuffix("training_model").rstrip("_-. ") or UNNAMED

    @property
    def smaller(self) -> tuple[Smaller, ...]:
        """The largest arena at smaller batches, which are sizes of the first dimension of the first input that has a
        free one there; nothing where they need as much."""
        inputs = (self.artifacts.evaluation or self.artifacts.training).inputs.values()
        leading = (str(t.shape[0]) for t in inputs if t.shape)
        symbol = next((name for name in leading if name in self.largest), None)
        if symbol is None:
            return ()
        routines = self.plan.routines
        whole = max(arena_peak(r, self.largest) for r in routines)
        sizes = [size for size in BATCHES if size < self.largest[symbol]]
        peaks = [max(arena_peak(r, {**self.largest, symbol: size}) for r in routines) for size in sizes]
        return tuple(Smaller(symbol, s, peak) for s, peak in zip(sizes, peaks, strict=True) if peak < whole)

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """Memory for temporaries of each graph at the largest sizes, the least that is possible, and what is there."""
        return tuple(arena_of(self.artifacts, routine, self.largest) for routine in self.plan.routines)


@uncollected()
def compile_model(
    path: Path,
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    ops_folders: tuple[Path, ...] = (),
    log: Callable[[str], None] | None = None,
    *,
    checks_loss: bool = False,
    graphs: Sequence[str] = EVERY,
    threads: str = OFF,
    packs: bool = True,
    kernel_names: bool = True,
    updates: Updates = Updates(),  # noqa: B008 (frozen)
    ram: int | None = None,
) -> CompiledModel:
    """Read, lower, optimise and lay out the model at `path`, a folder of artifacts or an ONNX file.

    `fixed` gives free dimensions a size for good; `largest` the sizes, in elements, that the default arena is laid out
    for. `ops_folders` are folders with custom operators; `log` receives one line per pass; `checks_loss` makes training
    steps refuse a loss that is not finite; `graphs` names the graphs that the plan has; `threads` is a value of
    --threads; `packs` allows kernels that pack large products, `kernel_names` has the plan name its kernels for errors
    in words; `updates` says where parameters are updated, and `ram` bytes are a budget for the arena and what
    persists. Raises BadInput, Unsupported and OverBudget."""
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
        checks_loss=checks_loss,
        graphs=graphs,
        threads=threads,
        packs=packs,
        kernel_names=kernel_names,
        updates=updates,
        ram=ram,
    )


def compile_artifacts(
    artifacts: TrainingArtifacts,
    checkpoint: bytes,
    operators: Registry,
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    log: Callable[[str], None] | None = None,
    *,
    checks_loss: bool = False,
    graphs: Sequence[str] = EVERY,
    threads: str = OFF,
    packs: bool = True,
    kernel_names: bool = True,
    updates: Updates = Updates(),  # noqa: B008 (frozen)
    ram: int | None = None,
) -> CompiledModel:
    """`compile_model` of `artifacts` that are in memory.

    `checkpoint` is the file that a session starts from, as bytes; `operators` is the registry; `fixed`, `largest`,
    `log`, `checks_loss`, `graphs`, `threads`, `packs`, `kernel_names`, `updates` and `ram` are as there. Raises
    BadInput, Unsupported and OverBudget."""
    selected = select_graphs(artifacts, graphs)
    _check_names("--dim", fixed, _free_dimensions(selected))
    program = select_procedures(lower(selected, operators, fixed), graphs)
    program = replace(program, fingerprint=fingerprint_of(artifacts))  # whichever graphs it has
    program = check_loss(program, operators) if checks_loss else program
    if not can_update(graphs):
        checkpoint = write_checkpoint(selected.checkpoint)
    _check_names("--max-dim", largest, program.symbols)
    separate = program
    if updates.fused:
        program = fuse_updates(program, operators, updates.checked)
    optimized = optimize(program, operators, log)
    if updates.fused:
        check_refusals(optimized, operators)
    sizes = {s: largest.get(s, DEFAULT_LARGEST) for s in optimized.symbols}
    check_elements(optimized, sizes, fixed)
    most = threads_of(threads, optimized, operators)
    plan = build_plan(optimized, operators, most, packs=packs)
    fitted = None
    if ram is not None:
        if threads == AUTO and most > 1 and ram_of(plan, sizes) > ram:
            most = 1  # every thread has scratch memory of its own
            plan = build_plan(optimized, operators, most, packs=packs)

        def build(each: Program) -> Plan:
            return build_plan(each, operators, most, packs=packs)

        def slicing() -> BatchSlices:
            if updates.fused or checks_loss:
                option = "--updates fused" if updates.fused else "--finite-checks loss"
                raise Unsupported([f"{option} needs the whole batch before it changes anything"])
            return batch_slices(selected, program, operators, fixed)

        def fused() -> int | None:
            """Bytes of RAM with fused updates, where these are possible."""
            try:
                return ram_of(build(optimize(fuse_updates(separate, operators, True), operators)), sizes)
            except (BadInput, Unsupported):
                return None

        fitted = fit(
            program,
            operators,
            sizes,
            ram,
            build,
            slicing=slicing,
            fused=None if updates.fused else fused,
        )
        plan = fitted.plan if fitted else plan
        if fitted and updates.fused:
            check_refusals(fitted.program, operators)
    wide = bool(needs_64_bits(plan, sizes))
    separate_plan = b""
    if updates.fused:
        two_calls = build_plan(optimize(separate, operators), operators, most, packs=packs)
        wide |= bool(needs_64_bits(two_calls, sizes))
        separate_plan = encode_plan(two_calls, sizes, wide, kernel_names)
    plan_bytes = encode_plan(plan, sizes, wide, kernel_names)
    return CompiledModel(
        artifacts,
        operators,
        program,
        plan,
        plan_bytes=plan_bytes,
        checkpoint=checkpoint,
        fixed=fixed,
        largest=sizes,
        graphs=tuple(graphs),
        threads=most,
        packs=packs,
        kernel_names=kernel_names,
        separate_plan=separate_plan,
        fitted=fitted,
    )


@uncollected()
def compile_models(
    folders: Sequence[Path],
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    ops_folders: tuple[Path, ...] = (),
    log: Callable[[str], None] | None = None,
    *,
    checks_loss: bool = False,
    graphs: Sequence[str] = EVERY,
    threads: str = OFF,
    packs: bool = True,
    kernel_names: bool = True,
    updates: Updates = Updates(),  # noqa: B008 (frozen)
    ram: int | None = None,
) -> tuple[CompiledModel, ...]:
    """Each of `folders` as `compile_model` does it, with the same `ops_folders`, `log`, `checks_loss`, `graphs`,
    `threads`, `packs`, `kernel_names`, `updates` and `ram`.

    Of `fixed` and `largest`, a model takes the sizes that it has dimensions for. Raises BadInput, also for a dimension
    that no model has, and Unsupported."""
    operators = registry(ops_folders)
    sets = [load(folder, operators) for folder in folders]
    free = [_free_dimensions(select_graphs(artifacts, graphs)) for artifacts in sets]
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
            checks_loss=checks_loss,
            graphs=graphs,
            threads=threads,
            packs=packs,
            kernel_names=kernel_names,
            updates=updates,
            ram=ram,
        )
        for folder, artifacts, names in zip(folders, sets, free, strict=True)
    )
    if any(is_wide(m.plan_bytes) for m in models):  # one library reads plans of one width
        return tuple(
            replace(m, plan_bytes=encode_plan(m.plan, m.largest, True, kernel_names)) for m in models
        )
    return models


def with_components(
    model: CompiledModel, components: Sequence[str], outputs: Sequence[str] = ()
) -> CompiledModel:
    """`model` with optional `components` of the library, by their names in COMPONENTS, one or several in one text.
    `outputs` of the inference model imply the component `export`. Raises BadInput."""
    chosen = {name.strip() for text in components for name in text.split(",") if name.strip()}
    unknown = sorted(chosen - COMPONENTS.keys())
    if unknown:
        raise BadInput(
            f"--with {unknown[0]}: there is no such component. Choose from {', '.join(COMPONENTS)}."
        )
    if not outputs and "export" not in chosen:
        return replace(model, components=frozenset(chosen))
    held = model.plan.parameters
    program = model.program
    if model.artifacts.evaluation and not any(p.name == "eval" for p in program.procedures):
        program = lower(select_graphs(model.artifacts, (EVALUATE,)), model.registry, model.fixed)
    made = inference(model.artifacts, program, outputs, model.fixed, {p.name for p in held})
    sizes = {p.name: prod(p.shape) * p.element.size for p in model.artifacts.checkpoint.parameters}
    return replace(
        model, components=frozenset(chosen | {"export"}), export_template=made.template(held, sizes)
    )


def replan(model: CompiledModel, operators: Registry) -> CompiledModel:
    """`model` planned anew with `operators`, whose lowerings are others; it keeps the first plan. Raises BadInput and
    Unsupported."""
    if model.fitted:
        program = model.fitted.optimized(model.program, operators, model.largest)
    else:
        program = optimize(model.program, operators)
    plan = build_plan(program, operators, model.threads, packs=model.packs)
    before = model.plan_bytes
    data = encode_plan(plan, model.largest, is_wide(before), model.kernel_names, is_dense(before))
    return replace(
        model, registry=operators, plan=plan, plan_bytes=data, direct_plan=model.direct_plan or before
    )


def with_dense_plans(models: Sequence[CompiledModel]) -> tuple[CompiledModel, ...] | None:
    """`models` with plans in the dense encoding; None where a plan has too much for it, as one library reads plans of
    one encoding."""
    plans = [
        encode_plan(m.plan, m.largest, is_wide(m.plan_bytes), m.kernel_names, dense=True) for m in models
    ]
    if not all(map(is_dense, plans)):
        return None
    return tuple(replace(m, plan_bytes=plan) for m, plan in zip(models, plans, strict=True))


def with_compact_checkpoint(model: CompiledModel) -> CompiledModel:
    """`model` with a compact form of its checkpoint. Raises BadInput for one that has more than parameters."""
    compact = compact_checkpoint(read_checkpoint(model.checkpoint), model.plan_bytes)
    return replace(model, compact_checkpoint=compact)


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


def _checkpoint_bytes(path: Path, artifacts: TrainingArtifacts) -> bytes:
    """The checkpoint as one file: the user's own bytes, unless its parameters are in a second file or in the model."""
    name = next((n for n in artifacts.digests if not n.endswith((".onnx", ".ort"))), None)
    if name is None:
        return write_checkpoint(artifacts.checkpoint)
    data = read_shared(path / name)
    try:
        read_checkpoint(data)
    except BadInput:
        return write_checkpoint(artifacts.checkpoint)
    return data
