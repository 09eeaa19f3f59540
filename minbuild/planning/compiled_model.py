"""All that is known about a trainer before a compiler runs, and other forms of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import parameter_bytes, read_checkpoint
from minbuild.ir import Plan, Program, TrainingArtifacts
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ir.mapped import FileBytes
from minbuild.ir.ram_price import RamPoint, RamPrice
from minbuild.ir.size_report import Arena, Smaller
from minbuild.ops import Registry
from minbuild.options.graph_selection import EVALUATE, select_graphs
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.arena.peak_memory import arena_of, arena_peak
from minbuild.planning.compact_checkpoint import compact_checkpoint
from minbuild.planning.inference_export import inference
from minbuild.planning.library_contents import COMPONENTS
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import dense_form, encode_plan, is_wide
from minbuild.planning.ram_budget import FittedPlan, ram_of

DEFAULT_LARGEST = 32  # of free dimensions
BATCHES = (1, 8)  # smaller ones that a report tells of
SHARED_NAMES_BYTES = 384  # of code that reads shared names: 190 to 374 on six targets
UNNAMED = "trainer"  # a model whose files have no prefix


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Everything known before a compiler runs."""

    artifacts: TrainingArtifacts  # all that was found, also graphs that are not selected
    registry: Registry
    program: Program  # as lowered, before passes
    plan: Plan
    plan_bytes: FileBytes
    checkpoint: FileBytes  # empty where the format of ONNX Runtime has no room for the parameters
    fixed: Mapping[str, int]  # dimensions the user fixed
    largest: Mapping[str, int]  # free dimensions: what memory is made for by default
    components: frozenset[str] = frozenset()  # of COMPONENTS
    export_template: bytes | None = None  # of the inference model, for the part "export"
    options: PlanOptions = PlanOptions()
    threads: int = 1  # most that work on a call: what scratch memory is planned for
    kernels: KernelChoice = EVERY_KERNEL  # that the plan was made of
    compact_checkpoint: FileBytes = b""  # what devices start from, if not the checkpoint itself
    fitted: FittedPlan | None = None  # what it cost to fit the plan into a budget of RAM
    ram_curve: tuple[RamPoint, ...] = ()  # the most RAM first, where it was asked for
    usual_ram: int = 0  # bytes without a budget of RAM, where one changed the plan
    measured_time: float | None = None  # that a step takes longer than without a budget, as a share
    straight: frozenset[str] = frozenset()  # kernels whose steps a compiled plan calls directly
    separate: Plan | None = None  # of a model with fused updates: the plan without, for the proof
    direct_plan: FileBytes = b""  # of a model with equal lowerings: the plan without, for the proof
    optimized: Program | None = None  # after all passes, without a budget of RAM

    @property
    def executed(self) -> Program:
        """The program that the plan executes."""
        if self.fitted:
            return self.fitted.program
        return self.optimized or optimize(self.program, self.registry)

    @property
    def separate_plan(self) -> FileBytes:
        """The bytes of `separate`, in tables as wide as those of the plan of the trainer; empty without."""
        if self.separate is None:
            return b""
        return encode_plan(self.separate, self.largest, is_wide(self.plan_bytes), self.options.kernel_names)

    @property
    def initial_checkpoint(self) -> FileBytes:
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
    def ram_price(self) -> RamPrice | None:
        """The price of the budget of RAM, where it changed the plan or others were tried."""
        if self.usual_ram:
            ram = self.fitted.ram if self.fitted else ram_of(self.plan, self.largest)
            added = self.fitted.added_time if self.fitted else 0.0  # the estimate is of calls, not of kernels
            return RamPrice(ram, self.usual_ram, added, self.measured_time, self.ram_curve)
        most = self.ram_curve[0].ram if self.ram_curve else 0
        return RamPrice(most, most, 0.0, curve=self.ram_curve) if most else None

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """Memory for temporaries of each graph at the largest sizes, the least that is possible, and what is there."""
        return tuple(arena_of(self.artifacts, routine, self.largest) for routine in self.plan.routines)


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
    search = model.fitted.search if model.fitted else 1
    plan = build_plan(program, operators, model.threads, model.kernels, search)
    before = model.plan_bytes
    data = encode_plan(plan, model.largest, is_wide(before), model.options.kernel_names, dense_form(before))
    return replace(
        model,
        registry=operators,
        plan=plan,
        plan_bytes=data,
        direct_plan=model.direct_plan or before,
        optimized=program,
    )


def with_dense_plans(models: Sequence[CompiledModel], most: int = 0) -> tuple[CompiledModel, ...] | None:
    """`models` with plans in the dense encoding, all in one form: the least, where `most` is 0, otherwise that of this
    number (`dense_form`) or with wider indices; None where a plan has too much for it, as one library reads plans of
    one encoding."""
    if not most:
        whole, shared = with_dense_plans(models, 2), with_dense_plans(models, 4)
        if whole is None or shared is None:
            return whole
        saved = sum(len(m.plan_bytes) for m in whole) - sum(len(m.plan_bytes) for m in shared)
        return shared if saved > SHARED_NAMES_BYTES else whole
    for form in (most, most - 1)[: 2 - most % 2]:
        plans = [
            encode_plan(m.plan, m.largest, is_wide(m.plan_bytes), m.options.kernel_names, dense=form)
            for m in models
        ]
        if all(dense_form(plan) == form for plan in plans):
            return tuple(replace(m, plan_bytes=plan) for m, plan in zip(models, plans, strict=True))
    return None


def with_compact_checkpoint(model: CompiledModel) -> CompiledModel:
    """`model` with a compact form of its checkpoint. Raises BadInput for one that has more than parameters."""
    if model.compact_checkpoint:
        return model
    compact = compact_checkpoint(read_checkpoint(model.checkpoint), model.plan_bytes)
    return replace(model, compact_checkpoint=compact)


def with_large_checkpoint(model: CompiledModel) -> CompiledModel:
    """`model`, whose parameters do not fit into the format of ONNX Runtime, with their compact form alone. Raises
    BadInput for a checkpoint that has more than parameters."""
    checkpoint = select_graphs(model.artifacts, model.options.graphs).checkpoint
    size = parameter_bytes(checkpoint)
    wish = f"checkpoint: {size:,} bytes of parameters are more than a file of ONNX Runtime's format holds"
    return replace(model, compact_checkpoint=compact_checkpoint(checkpoint, model.plan_bytes, wish))
