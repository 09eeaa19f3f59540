"""`minbuild reduce`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from minbuild import pipeline as reducing
from minbuild.authoring import Recipe, Source, in_directory, make_artifacts, read_source
from minbuild.authoring.bounded_loops import bounding_inputs
from minbuild.authoring.resolve import fixable
from minbuild.cli import build_options as building
from minbuild.cli.budgets import BudgetCheck
from minbuild.cli.earlier_build import earlier_record, growth_since
from minbuild.cli.option_parsing import ResolvedOptions, configured
from minbuild.cli.ort_config import read_config
from minbuild.cli.progress import (
    Json,
    Largest,
    OpsFolders,
    SetsOrModels,
    Terminal,
    Verbose,
    columns_of,
    exit_with_code,
    parse_sizes,
)
from minbuild.cli.training_options import (
    Frozen,
    GrowthInterval,
    LossScaleText,
    MadeFor,
    MadeWith,
    State,
    StateValues,
    Train,
    parse_loss_scale,
    recipe_of,
)
from minbuild.compat.ort_config.requirements import union
from minbuild.errors import BadInput
from minbuild.escape import printable
from minbuild.frontend.files import read_arrays
from minbuild.frontend.onnx.step_graph import is_step, state_pairs, step_model
from minbuild.planning.kernel_selection import ExtraRequirements
from minbuild.report import console as console_report
from minbuild.report import json as json_report
from minbuild.report.boards import parse_board


@configured
def reduce(
    artifacts: SetsOrModels,
    out: building.Out,
    force: building.Force = False,
    target: building.Targets = None,
    dim: building.Dims = None,
    max_dim: Largest = None,
    cxx: building.Compiler = None,
    cmake_toolchain: building.CMakeToolchain = None,
    reference: building.Reference = None,
    include_op: building.IncludeOp = None,
    ort_config: building.OrtConfig = None,
    exclude_op: building.ExcludeOp = None,
    types: building.Types = None,
    with_: building.With = None,
    export_output: building.ExportOutput = None,
    bindings: building.Bindings = None,
    integration: building.Integration = None,
    abi: building.Abi = None,
    settings: building.Settings = None,
    require_proof: building.RequireProof = None,
    board: building.BoardName = None,
    baseline: building.Baseline = None,
    history: building.History = None,
    no_analysis: building.NoAnalysis = None,
    time: building.Time = None,
    loss: MadeWith = None,
    optimizer: MadeFor = None,
    loss_scale: LossScaleText = None,
    growth_interval: GrowthInterval = None,
    train: Train = None,
    frozen: Frozen = None,
    state: State = None,
    state_values: StateValues = None,
    ops_dir: OpsFolders = None,
    report_form: building.Report = "summary",
    json_output: Json = False,
    verbose: Verbose = False,
    *,
    resolved: ResolvedOptions,
) -> None:
    """Build, prove and measure a trainer that holds nothing but what ARTIFACTS need, one for all of several; with
    --loss, a trainer of the forward model in an ONNX file."""
    with exit_with_code(verbose), Terminal(verbose) as terminal, ExitStack() as kept:
        if report_form not in ("summary", "full"):
            raise BadInput(f"--report {report_form}: no such report. Choose from summary, full.")
        folders, sizes = tuple(artifacts), parse_sizes("--dim", dim)
        largest = parse_sizes("--max-dim", max_dim)
        if loss is not None and (state or state_values):
            raise BadInput(
                "--state is for a whole training step, --loss for a forward model. Leave one of them out."
            )
        if loss is not None:
            scale = parse_loss_scale(loss_scale, growth_interval)
            recipe = recipe_of(loss, optimizer or "adamw", train, frozen, scale=scale)
            recipe = replace(recipe, sizes=sizes, largest=largest)
            models = [read_source(path) for path in artifacts]
            folders = tuple(
                kept.enter_context(_made(model, recipe, tuple(ops_dir or ()), terminal)) for model in models
            )
            made_with = {name for model in models for name in fixable(model.graph)}
            sizes = {name: size for name, size in sizes.items() if name not in made_with}
            made_with = {name for model in models for name in bounding_inputs(model.graph)}
            largest = {name: size for name, size in largest.items() if name not in made_with}
        elif optimizer or train or frozen or loss_scale is not None or growth_interval is not None:
            raise BadInput(
                "--optimizer, --train, --frozen, --loss-scale and --growth-interval are for a forward model: give it, "
                "and --loss. Artifacts and training steps have their own optimizer."
            )
        else:
            folders = tuple(
                kept.enter_context(_step(path, state, state_values, terminal)) for path in artifacts
            )
        request = reducing.Request(
            folders,
            out=out,
            targets=tuple(target or ()),
            dims=sizes,
            largest=largest,
            cxx=cxx,
            cmake_toolchain=cmake_toolchain,
            reference=reference,
            ops_folders=tuple(ops_dir or ()),
            components=tuple(with_ or ()),
            export_outputs=tuple(export_output or ()),
            extra=ExtraRequirements(
                tuple(include_op or ()),
                union([read_config(path) for path in ort_config]) if ort_config else None,
                tuple(exclude_op or ()),
                tuple(name for text in types or () for name in text.split(",")),
            ),
            analysis=not no_analysis,
            time=bool(time),
            bindings=tuple(bindings or ()),
            integrations=tuple(integration or ()),
            abi=abi or "",
            build_options=resolved.build_options,
            require_proof=bool(require_proof),
            force=force,
            board=parse_board(board) if board else None,
        )
        budget_check = BudgetCheck.open(resolved.budgets, resolved.path, baseline, history)
        terminal.stage(f"Reading {', '.join(map(str, artifacts))}")
        before = earlier_record(out)
        report = reducing.reduce(request, terminal)
        terminal.done()
        if json_output:
            print(json_report.render(report), end="")
            budget_check.close(report)
            return
        screen = Console()
        if report_form == "full":
            text = console_report.render(report, color=screen.is_terminal, width=columns_of(screen))
            print(text, end="")
        else:
            console_report.print_summary(report, screen)
        print(growth_since(before, report), end="")
        print(printable(f"Report: {out / 'report' / 'report.html'} (here: --report full)"))
        print(printable(f"Package: {out} (start with {out / 'README.md'})"))
        budget_check.close(report)


@contextmanager
def _made(
    model: Source,
    recipe: Recipe,
    ops_folders: tuple[Path, ...],
    terminal: Terminal,
) -> Iterator[Path]:
    """A folder with artifacts of a forward model, for which the sizes of `recipe` count that name something of it."""
    terminal.stage(f"Making artifacts of {model.path}")
    sizes = {name: recipe.sizes[name] for name in fixable(model.graph) if name in recipe.sizes}
    largest = {name: recipe.largest[name] for name in bounding_inputs(model.graph) if name in recipe.largest}
    recipe = replace(recipe, sizes=sizes, largest=largest)
    made = make_artifacts(model, recipe, ops_folders, f"{model.path.stem}_")
    for note in made.notes:
        terminal.note(note)
    with in_directory(made) as folder:
        yield folder


@contextmanager
def _step(path: Path, state: list[str] | None, values: Path | None, terminal: Terminal) -> Iterator[Path]:
    """A model with training information in place of a graph that is a whole training step; other artifacts as they
    are."""
    pairs = state_pairs(state or ())
    if not pairs and values is None and not (path.suffix == ".onnx" and path.is_file() and is_step(path)):
        yield path
        return
    terminal.stage(f"Reading the training step {path}")
    made = step_model(path, pairs, read_arrays(values) if values is not None else {})
    for note in made.notes:
        terminal.note(note)
    with tempfile.TemporaryDirectory(prefix="minbuild-step-") as folder:
        model = Path(folder) / path.name
        model.write_bytes(made.data)
        yield model
