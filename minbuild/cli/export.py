"""`minbuild export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.authoring.load import load
from minbuild.authoring.lora import adapters_of, merged_adapters
from minbuild.cli.progress import Artifacts, OpsFolders, Verbose, exit_with_code, print_lines
from minbuild.codegen.atomic_write import write_file
from minbuild.errors import BadInput
from minbuild.frontend.adapter import SUFFIX, overlaid, read_trained, write_adapter
from minbuild.frontend.onnx.writer import with_overridable
from minbuild.ops import registry
from minbuild.planning.inference_export import default_outputs, export_model
from minbuild.quantization.mixed_precision import MOST_DIFFERENCE, quantized


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
    quantize: Annotated[
        bool,
        typer.Option(
            "--quantize",
            help="Write convolutions and products by weights in 8 bits, with QuantizeLinear and DequantizeLinear "
            "around them: weights per channel, ranges of activations from --batches.",
        ),
    ] = False,
    batches: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.npz",
            help="With --quantize: a batch of data, an array for each input of the model; or a folder of such files. "
            "Repeatable.",
        ),
    ] = None,
    max_difference: Annotated[
        float,
        typer.Option(
            help="With --quantize: largest difference of outputs from the float model's on the batches, as part of "
            "their largest element. Layers that make more stay in float."
        ),
    ] = MOST_DIFFERENCE,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Write the inference model of ARTIFACTS, with trained parameters."""
    with exit_with_code(verbose):
        _check(out, quantize, unmerged, batches)
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
        if quantize:
            operators = registry(tuple(ops_dir or ()))
            smaller = quantized(found, trained, batches or (), outputs, operators, most=max_difference)
            found, outputs = smaller.artifacts, smaller.outputs
            notes = (*notes, smaller.summary())
        made, data = export_model(found, trained, outputs, tuple(ops_dir or ()))
        kept = [p.name for p in adapters_of(trained).parameters if p.name in made.pieces]
        write_file(out, with_overridable(data, kept) if unmerged else data)
        for note in notes:
            print_lines(f"note: {note}")
        print_lines(f"{out}  {len(data):,} bytes, outputs: {', '.join(made.outputs)}")


def _check(out: Path, quantize: bool, unmerged: bool, batches: list[Path] | None) -> None:
    """Raises BadInput for options that exclude each other."""
    if batches and not quantize:
        raise BadInput("--batches: they are for --quantize, which is not given.")
    if quantize and unmerged:
        raise BadInput("--quantize --unmerged: adapters that change later have no ranges. Leave one.")
    if quantize and out.suffix == SUFFIX:
        raise BadInput(f"--quantize --out {out}: adapters are not quantised. Write an .onnx file.")
