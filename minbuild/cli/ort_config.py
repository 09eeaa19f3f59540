"""`minbuild ort-config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minbuild.cli.progress import ArtifactSets, OpsFolders, Verbose, exit_with_code, print_lines
from minbuild.codegen.atomic_write import write_file
from minbuild.compat.ort_config.check import missing_operators
from minbuild.compat.ort_config.collect import STYLES, requirements, sources
from minbuild.compat.ort_config.grammar import parse_config, render_config
from minbuild.compat.ort_config.requirements import Requirements, union
from minbuild.errors import BadInput, Unsupported
from minbuild.escape import printable_lines
from minbuild.frontend.files import read_file


def ort_config(
    artifacts: ArtifactSets,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: standard output.")
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            help="Loading of the models in ONNX Runtime: fixed, .ort files that are already optimized; runtime, .ort "
            "files that it optimizes when it loads them."
        ),
    ] = "fixed",
    check: Annotated[
        Path | None,
        typer.Option(help="Write nothing; report what this configuration lacks for ARTIFACTS."),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--ort-config", help="Configuration whose operators are included as well. Repeatable."),
    ] = None,
    ops_dir: OpsFolders = None,
    verbose: Verbose = False,
) -> None:
    """Write the operator configuration of an ONNX Runtime reduced build for ARTIFACTS, or check one."""
    with exit_with_code(verbose):
        if style not in STYLES:
            raise BadInput(f"--style {style}: no such style. Choose from {', '.join(STYLES)}.")
        more = [read_config(path) for path in merge or ()]
        required = union([requirements(artifacts, style, tuple(ops_dir or ())), *more])
        if check is not None:
            findings = missing_operators(required, _text(check), str(check))
            if findings:
                raise Unsupported(list(findings))
            print_lines(f"{check}: holds everything that {', '.join(map(str, artifacts))} need.")
            return
        text = render_config(required, [*sources(artifacts), *(path.name for path in merge or ())])
        if out is None:
            print(printable_lines(text), end="")
            return
        write_file(out, text.encode())


def read_config(path: Path) -> Requirements:
    """The requirements in a configuration file. Raises BadInput."""
    return parse_config(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return bytes(read_file(path, "Give a configuration file.")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not text. Give a configuration file.") from error
