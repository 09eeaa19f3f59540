"""Which encoding of plans makes the smaller sum of library and plans: plain tables, or dense streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.form_comparison import Form, smaller
from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput
from minbuild.options.build_options import AUTO, COMPILED, DENSE, INTERPRETED, PLAIN, BuildOptions
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """The models with their plans in the encoding that was chosen, and a sentence about the other one, "" where none
    was asked for."""

    models: tuple[CompiledModel, ...]
    note: str = ""


def choose_encoding(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> EncodingChoice:
    """The encoding that `--plan-encoding` comes to under `build_options`: for `auto`, libraries of `models` are built
    for both as `sizer` says, and the smaller sum of library and plans is chosen, on all targets together. Raises
    ToolchainFailed, and BadInput where `dense` is asked for and a plan has too much for it."""
    plain = tuple(models)
    asked = build_options.plan_encoding
    if asked == PLAIN or build_options.flavor == COMPILED:
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
    if asked != AUTO:
        return EncodingChoice(dense)
    reads = replace(build_options, flavor=INTERPRETED)
    forms = [
        Form(name, sum(len(m.plan_bytes) for m in each), sizer.loaded_by_target(each, reads))
        for name, each in ((PLAIN, plain), (DENSE, dense))
    ]
    chosen, note = smaller("Plan encoding", (forms[0], forms[1]), sizer.targets)
    return EncodingChoice(plain if chosen is forms[0] else dense, note)
