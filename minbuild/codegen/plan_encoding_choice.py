"""Which encoding of plans makes the smaller sum of library and plans: plain tables, or dense streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.form_comparison import Form, smaller
from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput
from minbuild.ir.plan import LOOP_CONTROL
from minbuild.options.build_options import COMPILED, DENSE, INTERPRETED, LOOPS, PLAIN, BuildOptions
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans

MOST_PLAIN = 4096  # bytes of a plan of loops over time that stays in tables by default


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """The models with their plans in the encoding that was chosen, and a sentence about the other one, "" where none
    was asked for."""

    models: tuple[CompiledModel, ...]
    note: str = ""


def choose_encoding(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> EncodingChoice:
    """The encoding that `--plan-encoding` comes to under `build_options`: for `auto`, and for `loops` where `models`
    have large plans of loops over time, libraries are built for both as `sizer` says, and the smaller sum of library
    and plans is chosen, on all targets together. Raises ToolchainFailed, and BadInput where `dense` is asked for and a
    plan has too much for it."""
    plain = tuple(models)
    asked = build_options.plan_encoding
    tables = asked == PLAIN or (asked == LOOPS and not any(map(_is_large_loop, plain)))
    if tables or build_options.flavor == COMPILED:
        return EncodingChoice(plain)
    dense = with_dense_plans(plain)
    if dense is None:
        if asked == DENSE:
            raise BadInput(
                "--plan-encoding dense: a plan has more entries of one kind, or needs more memory, than that encoding "
                "counts. Build with --plan-encoding plain."
            )
        return EncodingChoice(
            plain, "Plan encoding plain: a plan has more entries than the dense one counts."
        )
    if asked == DENSE:
        return EncodingChoice(dense)
    reads = replace(build_options, flavor=INTERPRETED)
    forms = [
        Form(name, sum(len(m.plan_bytes) for m in each), sizer.loaded_by_target(each, reads))
        for name, each in ((PLAIN, plain), (DENSE, dense))
    ]
    chosen, note = smaller("Plan encoding", (forms[0], forms[1]), sizer.targets)
    return EncodingChoice(plain if chosen is forms[0] else dense, note)


def _is_large_loop(model: CompiledModel) -> bool:
    """True for a plan of loops over time that takes more than `MOST_PLAIN` bytes as tables."""
    plan = model.plan
    backward = any(t.per_sample == 2 for t in plan.tensors)  # loops over the batch run forward alone
    over_time = backward or any(kernel.stem == LOOP_CONTROL for kernel in plan.kernels)
    return over_time and len(model.plan_bytes) > MOST_PLAIN
