"""`minbuild check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.package_compatibility import (
    InstalledPackage,
    in_package_form,
    missing_capabilities,
    read_package,
)
from minbuild.cli import build_options as building
from minbuild.cli.progress import (
    ArtifactSets,
    Largest,
    OpsFolders,
    Terminal,
    Verbose,
    exit_with_code,
    parse_sizes,
    print_lines,
)
from minbuild.cli.settings_file import resolve_build_options
from minbuild.codegen.atomic_write import write_file
from minbuild.errors import BadInput, Unsupported
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ir.ram_price import RamPoint
from minbuild.options.build_options import AUTO, FUSED, GRADIENTS, OFF, SEPARATE, BuildOptions
from minbuild.options.byte_sizes import parse_size
from minbuild.options.graph_selection import TRAIN
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.planning.compile import compile_models
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.ram_budget import ram_of
from minbuild.toolchain import host_target


def check(
    artifacts: ArtifactSets,
    package: Annotated[
        Path | None, typer.Option("--package", "-p", help="Folder that minbuild reduce wrote.")
    ] = None,
    dim: building.Dims = None,
    max_dim: Largest = None,
    ram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="A budget for memory, as given to minbuild reduce, such as 1.5MB: is there a plan, what does it cost, "
            "and what do other budgets? Exit code 5, with the least that is possible, where there is none.",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="As given to minbuild reduce: auto, off, on or a number. Threads have scratch memory of their own. "
            "Default: auto where this machine makes threads, off with --package.",
        ),
    ] = None,
    finite_checks: Annotated[
        str,
        typer.Option(metavar="WHAT", help="As given to minbuild reduce: gradients, loss, all or off."),
    ] = GRADIENTS,
    updates: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="As given to minbuild reduce: separate or fused. Default: as in the package, separate without one.",
        ),
    ] = None,
    write_plan: Annotated[
        Path | None,
        typer.Option(
            help="File to write the model's plan to; the library trains it with the checkpoint of ARTIFACTS."
        ),
    ] = None,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Check whether an existing package can run ARTIFACTS without rebuilding, or a budget of memory can be met."""
    with exit_with_code(verbose), Terminal(verbose) as terminal:
        if package is None and ram is None:
            raise BadInput("Nothing to check: give --package DIR, --ram SIZE, or both.")
        if write_plan is not None and len(artifacts) > 1:
            raise BadInput(f"--write-plan {write_plan}: is for one model. Give one folder.")
        there = read_package(package) if package is not None else None
        budget = None if ram is None else _bytes_of(ram)
        usual = OFF if there is not None or host_target().traits.no_threads else AUTO
        given = {
            "threads": threads or usual,
            "finite_checks": finite_checks,
            "updates": updates or (FUSED if there and there.fused_updates else SEPARATE),
        }
        build_options = resolve_build_options(given, {}, None)
        terminal.stage(_stage(artifacts, budget))
        models = compile_models(
            artifacts,
            parse_sizes("--dim", dim),
            parse_sizes("--max-dim", max_dim),
            tuple(ops_dir or ()),
            terminal.detail,
            options=replace(
                _plan_options(there, build_options),
                ram=budget,
                ram_curve=budget is not None,
            ),
        )
        terminal.done()
        if there is not None:
            models = tuple(in_package_form(model, there) for model in models)
        if budget is not None:
            for folder, model in zip(artifacts, models, strict=True):
                print_lines(*_budget_lines(f"{folder}: " if len(artifacts) > 1 else "", model, budget))
        if there is not None and package is not None:
            _check_package(artifacts, models, package, there)
        if write_plan is not None:
            write_file(write_plan, models[0].plan_bytes)


def _check_package(
    artifacts: Sequence[Path], models: Sequence[CompiledModel], package: Path, there: InstalledPackage
) -> None:
    """Raises Unsupported where the library of `package` lacks something for one of `models`."""
    does = TRAIN if TRAIN in there.graphs else " and ".join(there.graphs)
    findings = []
    for folder, model in zip(artifacts, models, strict=True):
        found = missing_capabilities(model, there)
        findings += [f"{folder}: {finding}" if len(artifacts) > 1 else finding for finding in found]
        if not found:
            largest = max(arena.peak for arena in model.arenas)
            print_lines(
                f"{folder}: {package} can {does} it: plan {len(model.plan_bytes):,} bytes, "
                f"memory for temporaries {largest:,} bytes."
            )
    if findings:
        raise Unsupported(findings)


def _stage(artifacts: Sequence[Path], budget: int | None) -> str:
    folders = ", ".join(map(str, artifacts))
    return f"Planning {folders}" + (f" for {budget:,} bytes of RAM" if budget is not None else "")


def _bytes_of(ram: str) -> int:
    size = parse_size(ram)
    if not size:
        raise BadInput(f"--ram {ram}: not a number of bytes. Write it as 65536, 64K or 1.5MB.")
    return size


def _plan_options(there: InstalledPackage | None, build_options: BuildOptions) -> PlanOptions:
    """Those of the package, if there is one. Raises BadInput for other updates than it has."""
    fused = build_options.updates == FUSED
    options = PlanOptions(
        threads=build_options.threads,
        checks_loss=build_options.checks_loss,
        updates=Updates(fused, build_options.checks_gradients),
    )
    if there is None:
        return options
    if fused != there.fused_updates:
        own = FUSED if there.fused_updates else SEPARATE
        raise BadInput(
            f"--updates {build_options.updates}: those of {there.folder} are {own}. Leave the option out."
        )
    return replace(
        options, graphs=there.graphs, kernels=KernelChoice(held=there.held), native_halves=there.native_halves
    )


def _budget_lines(prefix: str, model: CompiledModel, budget: int) -> Iterator[str]:
    """The price of a budget that can be met, and of others."""
    found = ram_of(model.plan, model.largest)
    limited = model.kernels.scratch is not None
    price = "with kernels of little scratch memory" if limited else "as it is without a budget"
    if model.fitted is not None:
        price = f"a training step takes about {100 * model.fitted.added_time:.0f} % longer by estimate"
    yield (
        f"{prefix}{found:,} bytes of RAM fit into {budget:,}, {model.plan.persistent_bytes:,} of them for what "
        f"persists: {price}."
    )
    yield f"{prefix}Time of a training step over RAM, by estimate:"
    for point in model.ram_curve:
        yield f"{prefix}{curve_line(point)}"


def curve_line(point: RamPoint) -> str:
    """A point of the curve as text."""
    return f"  {point.ram:>15,} bytes  {1 + point.added_time:.2f} times"
