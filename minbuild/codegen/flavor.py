"""Which flavour of a library is smaller: one that reads plans, or one that has its plan in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minbuild.codegen.form_comparison import Form, smaller
from minbuild.codegen.library_sizer import LibrarySizer
from minbuild.errors import BadInput, Unsupported
from minbuild.options.build_options import AUTO, COMPILED, INTERPRETED, BuildOptions
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements


@dataclass(frozen=True, slots=True)
class FlavorChoice:
    """The build options with the flavour that was chosen, and a sentence about the other one, "" where none was asked
    for."""

    build_options: BuildOptions
    note: str = ""


def choose_flavor(
    models: Sequence[CompiledModel], build_options: BuildOptions, sizer: LibrarySizer
) -> FlavorChoice:
    """The flavour that `--flavor auto` comes to: both libraries of `models` are built as `sizer` says, under
    `build_options`, and that which is smaller together with its plan is chosen, on all targets together: they share a
    plan file and sources. A library that is to run other models reads plans. Raises ToolchainFailed."""
    if build_options.flavor != AUTO:
        return FlavorChoice(build_options)
    interpreted, compiled = (replace(build_options, flavor=name) for name in (INTERPRETED, COMPILED))
    more = _for_other_models(sizer.extra, build_options)
    if more:
        return FlavorChoice(
            interpreted, f"Flavor interpreted: {more} asks for a library that runs other models too."
        )
    try:
        ours = Form(COMPILED, 0, sizer.loaded_by_target(models, compiled))
    except (BadInput, Unsupported) as error:
        return FlavorChoice(interpreted, f"Flavor interpreted: {error}")
    plan = len(models[0].plan_bytes)
    reads = Form(INTERPRETED, plan, sizer.loaded_by_target(models, interpreted))
    chosen, note = smaller("Flavor", (ours, reads), sizer.targets)
    return FlavorChoice(compiled if chosen is ours else interpreted, note)


def _for_other_models(extra: ExtraRequirements, build_options: BuildOptions) -> str:
    """The option that asks for more than the models need, for plans that come later; "" without one."""
    asked = {
        "--include-op": bool(extra.include),
        "--ort-config": extra.required is not None,
        "--kernel-features all": build_options.kernel_features == "all",
        "--shape-ops all": build_options.shape_ops == "all",
    }
    return next((name for name, given in asked.items() if given), "")
