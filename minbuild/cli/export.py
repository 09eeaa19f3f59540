"""`minbuild export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.authoring.load import load
from minbuild.authoring.lora import adapters_of, merged_adapters
from minbuild.cli.progress import Artifacts, OpsFolders, Verbose, exit_with_code, print_lines
from minbuild.codegen.atomic_write import write_file
from minbuild.frontend.adapter import SUFFIX, overlaid, read_trained, write_adapter
from minbuild.frontend.onnx.writer import with_overridable
from minbuild.ops import registry
from minbuild.planning.inference_export import default_outputs, export_model


def export(
    artifacts: Artifacts,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="ONNX file to write; or .onnx_adapter, for the adapters alone."),
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint with the trained parameters, or an .onnx_adapter file. Default: that of ARTIFACTS."
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(help="Output of the model. Default: the input of the loss. Repeatable."),
    ] = None,
    unmerged: Annotated[
        bool,
        typer.Option(
            "--unmerged",
            help="Keep low-rank adapters as inputs with default values, for ONNX Runtime's LoraAdapter, instead of "
            "adding them to the weights.",
        ),
    ] = False,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Write the inference model of ARTIFACTS, with trained parameters."""
    with exit_with_code(verbose):
        found = load(artifacts, registry(tuple(ops_dir or ())))
        trained = (
            found.checkpoint if checkpoint is None else overlaid(found.checkpoint, read_trained(checkpoint))
        )
        if out.suffix == SUFFIX:
            data = write_adapter(adapters_of(trained))
            write_file(out, data)
            print_lines(f"{out}  {len(data):,} bytes")
            return
        notes: tuple[str, ...] = ()
        outputs = tuple(output or ())
        if adapters_of(trained).parameters and not unmerged:
            if found.evaluation is not None and not outputs:  # which are told by what trains
                outputs = default_outputs(found.evaluation, [p.name for p in trained.parameters])
            found, notes = merged_adapters(found, trained)
        made, data = export_model(found, trained, outputs, tuple(ops_dir or ()))
        kept = [p.name for p in adapters_of(trained).parameters if p.name in made.pieces]
        write_file(out, with_overridable(data, kept) if unmerged else data)
        for note in notes:
            print_lines(f"note: {note}")
        print_lines(f"{out}  {len(data):,} bytes, outputs: {', '.join(made.outputs)}")
