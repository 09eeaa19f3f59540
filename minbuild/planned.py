"""Artifacts -> everything that is known about a trainer before a compiler runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minbuild.artifacts import load_bundle
from minbuild.artifacts.checkpoint import read_checkpoint, write_checkpoint
from minbuild.artifacts.files import read_file
from minbuild.dims import symbols_in
from minbuild.errors import BadInput
from minbuild.model import Bundle, Plan, Program
from minbuild.ops import Registry, registry
from minbuild.passes import optimize
from minbuild.passes.loss_check import check_loss
from minbuild.passes.lower import lower
from minbuild.passes.memory import buffer_sizes, lower_bound, skyline
from minbuild.passes.plan import build_plan
from minbuild.plan_format import encode_plan
from minbuild.size.report import Arena

DEFAULT_LARGEST = 32  # of free dimensions


@dataclass(frozen=True, slots=True)
class Model:
    """Everything known before a compiler runs."""

    bundle: Bundle
    registry: Registry
    program: Program  # as lowered, before passes
    plan: Plan
    plan_bytes: bytes
    checkpoint: bytes
    fixed: Mapping[str, int]  # dimensions the user fixed
    largest: Mapping[str, int]  # free dimensions: what memory is made for by default

    @property
    def digest(self) -> str:
        """What generated files call the model."""
        return f"the model with sha256 {self.bundle.digests[self.bundle.training.source][:16]}"

    @property
    def name(self) -> str:
        """What the artifacts' common prefix calls the model; folders may be called anything."""
        stem = self.bundle.training.source.rpartition(".")[0]
        return stem.removesuffix("training_model").rstrip("_-. ") or "trainer"

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """Memory for temporaries of each graph at the largest sizes, and the least that is possible."""
        found = []
        for routine in self.plan.routines:
            sizes = buffer_sizes(routine.buffers, self.largest)
            peak = skyline(routine.buffers, sizes)[1]
            found.append(Arena(routine.name, peak, lower_bound(routine.buffers, sizes)))
        return tuple(found)


def plan_model(
    artifacts: Path,
    fixed: Mapping[str, int],
    largest: Mapping[str, int],
    ops_folders: tuple[Path, ...] = (),
    tell: Callable[[str], None] | None = None,
    *,
    checks_loss: bool = False,
) -> Model:
    """Read, lower, optimise and lay out. `fixed` and `largest` name free dimensions; `tell` hears one line
    per pass; `checks_loss` makes training steps refuse a loss that is not finite. Raises BadInput and
    Unsupported."""
    bundle, operators = load_bundle(artifacts), registry(ops_folders)
    _check_names("--dim", fixed, _free_dimensions(bundle))
    program = lower(bundle, operators, fixed)
    program = check_loss(program) if checks_loss else program
    _check_names("--max", largest, program.symbols)
    plan = build_plan(optimize(program, operators, tell), operators)
    sizes = {s: largest.get(s, DEFAULT_LARGEST) for s in plan.symbols}
    checkpoint = _checkpoint_bytes(artifacts, bundle)
    return Model(bundle, operators, program, plan, encode_plan(plan, sizes), checkpoint, fixed, sizes)


def _free_dimensions(bundle: Bundle) -> tuple[str, ...]:
    graphs = [bundle.training] + ([bundle.evaluation] if bundle.evaluation else [])
    dims = [d for g in graphs for t in g.inputs.values() for d in t.shape or ()]
    return tuple(sorted({name for d in dims for name in symbols_in(d)}))


def _check_names(option: str, given: Mapping[str, int], free: Sequence[str]) -> None:
    """Only free dimensions can be given a size. Raises BadInput."""
    unknown = sorted(set(given) - set(free))
    if unknown:
        there = f"Free dimensions are: {', '.join(free)}." if free else "This model has no free dimensions."
        raise BadInput(
            f"{option} {unknown[0]}={given[unknown[0]]}: the model has no such free dimension. {there}"
        )


def _checkpoint_bytes(artifacts: Path, bundle: Bundle) -> bytes:
    """The checkpoint as one file: the user's own bytes, unless its parameters are in a second file."""
    name = next(n for n in bundle.digests if not n.endswith((".onnx", ".ort")))
    data = read_file(artifacts / name)
    try:
        read_checkpoint(data)
    except BadInput:
        return write_checkpoint(bundle.checkpoint)
    return data
