"""Which encoding of plans makes the smaller sum of library and plans: plain tables, or dense streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput
from minbuild.options.build_options import AUTO, COMPILED, DENSE, INTERPRETED, PLAIN, BuildOptions
from minbuild.planning.compile import CompiledModel, with_dense_plans


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
    for both as `sizer` says, and the smaller sum of library and plans is chosen. Raises ToolchainFailed, and BadInput
    where `dense` is asked for and a plan has too much for it."""
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
    sizes = [
        (sum(len(m.plan_bytes) for m in each), sizer.loaded_bytes(each, reads)) for each in (dense, plain)
    ]
    saved = sum(sizes[1]) - sum(sizes[0])
    both = "; ".join(
        f"library {library:,} B and plan {plan:,} B, {name}"
        for name, (plan, library) in zip((DENSE, PLAIN), sizes, strict=True)
    )
    if saved > 0:
        return EncodingChoice(dense, f"Plan encoding dense saves {saved:,} B on {sizer.target}: {both}.")
    return EncodingChoice(plain, f"Plan encoding plain saves {-saved:,} B on {sizer.target}: {both}.")
