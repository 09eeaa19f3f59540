"""`minbuild check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.analysis.package_compatibility import missing_capabilities, read_package
from minbuild.cli import build_options as building
from minbuild.cli.progress import (
    ArtifactSets,
    Largest,
    OpsFolders,
    Verbose,
    exit_with_code,
    parse_sizes,
    print_lines,
)
from minbuild.codegen.atomic_write import write_file
from minbuild.errors import BadInput, Unsupported
from minbuild.options.build_options import ALL, GRADIENTS, LOSS
from minbuild.options.graph_selection import TRAIN
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_models


def check(
    artifacts: ArtifactSets,
    package: Annotated[Path, typer.Option("--package", "-p", help="Folder that minbuild reduce wrote.")],
    dim: building.Dims = None,
    max_dim: Largest = None,
    finite_checks: Annotated[
        str,
        typer.Option(metavar="WHAT", help="As given to minbuild reduce: gradients, loss, all or off."),
    ] = GRADIENTS,
    write_plan: Annotated[
        Path | None,
        typer.Option(
            help="File to write the model's plan to; the library trains it with the checkpoint of ARTIFACTS."
        ),
    ] = None,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Check whether an existing package can run ARTIFACTS without rebuilding."""
    with exit_with_code(verbose):
        if write_plan is not None and len(artifacts) > 1:
            raise BadInput(f"--write-plan {write_plan}: is for one model. Give one folder.")
        there = read_package(package)
        models = compile_models(
            artifacts,
            parse_sizes("--dim", dim),
            parse_sizes("--max-dim", max_dim),
            tuple(ops_dir or ()),
            options=PlanOptions(
                there.graphs,
                packs=there.packs,
                checks_loss=finite_checks in (LOSS, ALL),
                native_halves=there.native_halves,
            ),
        )
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
        if write_plan is not None:
            write_file(write_plan, models[0].plan_bytes)
