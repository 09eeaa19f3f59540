"""`minbuild export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.authoring.load import load
from minbuild.cli.progress import Artifacts, OpsFolders, Verbose, failures, say
from minbuild.codegen.atomic_write import write_file
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ops import registry
from minbuild.planning.inference_export import export_model


def export(
    artifacts: Artifacts,
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint with the trained parameters. Default: that of ARTIFACTS.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(help="Output of the model. Default: the input of the loss. Repeatable."),
    ] = None,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Write the inference model of ARTIFACTS, with trained parameters."""
    with failures(verbose):
        found = load(artifacts, registry(tuple(ops_dir or ())))
        trained = found.checkpoint if checkpoint is None else read_checkpoint(checkpoint)
        made, data = export_model(found, trained, tuple(output or ()), tuple(ops_dir or ()))
        write_file(out, data)
        say(f"{out}  {len(data):,} bytes, outputs: {', '.join(made.outputs)}")
