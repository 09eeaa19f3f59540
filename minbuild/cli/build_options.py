"""Options of building a trainer, by the panels of the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minbuild.cli.progress import SIZES
from minbuild.codegen.bindings import LANGUAGES
from minbuild.planning.library_contents import PARTS

MACHINE, HOLDS, PROOF = (
    "Machines and sizes",
    "What the trainer holds",
    "Proof and report",
)  # panels of the help
_REPEATABLE = "Repeatable, or with commas"


def _option(panel: str, metavar: str, text: str, *names: str, **others: Any) -> Any:
    return typer.Option(*names, metavar=metavar or None, help=text, rich_help_panel=panel, **others)


def _switch(panel: str, name: str, text: str, **others: Any) -> Any:
    return _option(panel, "", text, f"--{name}/--no-{name}", show_default=False, **others)


def _listed(rows: dict[str, str]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in rows.items())


Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", help="Folder for the package; one of minbuild's own is replaced."
    ),
]
Targets = Annotated[
    list[str] | None,
    _option(
        MACHINE,
        "MACHINE",
        "Machine to build for, such as aarch64-linux-musl. Repeatable. Default: this one.",
    ),
]
Dims = Annotated[
    list[str] | None,
    _option(
        MACHINE, SIZES, "Fix a free dimension, such as batch=8: the trainer is smaller. Repeatable.", "--dim"
    ),
]
Compiler = Annotated[
    str | None,
    _option(MACHINE, "PROGRAM", "A gcc or clang to use instead of the compiler that comes with minbuild."),
]
CMakeToolchain = Annotated[
    Path | None, _option(MACHINE, "FILE", "A CMake toolchain file, such as that of the Android NDK.")
]
CheckLoss = Annotated[
    bool | None,
    _switch(
        HOLDS,
        "check-loss",
        "Training steps whose loss is infinite or no number fail, and leave gradients as they are.",
    ),
]
IncludeOp = Annotated[
    list[str] | None,
    _option(
        HOLDS, "OPERATOR", "Operator to hold as well, such as Conv or com.microsoft:ConvGrad. Repeatable."
    ),
]
ExcludeOp = Annotated[
    list[str] | None,
    _option(HOLDS, "OPERATOR", "Operator that must not be there: left out of --require. Repeatable."),
]
Require = Annotated[
    list[Path] | None,
    _option(
        HOLDS,
        "FILE",
        "Configuration of ONNX Runtime's reduced build whose operators to hold as well. Repeatable.",
    ),
]
Types = Annotated[
    list[str] | None,
    _option(
        HOLDS,
        "TYPE",
        f"Element types that kernels may have, such as float,int64. Default: all. {_REPEATABLE}.",
    ),
]
With = Annotated[
    list[str] | None,
    _option(
        HOLDS,
        "PART",
        "Parts that the library has only if asked for: "
        f"{_listed({name: what for name, (_, what) in PARTS.items()})}. {_REPEATABLE}.",
        "--with",
    ),
]
ExportOutput = Annotated[
    list[str] | None,
    _option(
        HOLDS,
        "NAME",
        "Output of exported inference models. Default: what the loss is taken of. Repeatable; includes --with export.",
    ),
]
Bindings = Annotated[
    list[str] | None,
    _option(
        HOLDS,
        "LANGUAGE",
        f"Languages to put an API of into the package: {_listed(dict(LANGUAGES))}. "
        f"{_REPEATABLE}; js includes --target wasm32.",
    ),
]
Reference = Annotated[
    Path | None,
    _option(PROOF, "FILE", "Recorded trajectory (.npz) that the trainer must follow, to within its noise."),
]
Baseline = Annotated[
    Path | None,
    _option(PROOF, "FILE", "Earlier report.json, or history, that growth is measured against."),
]
History = Annotated[
    Path | None,
    _option(
        PROOF,
        "FILE",
        "File that gets a line with the figures of this build, unless it is over budget, for minbuild diff.",
    ),
]
Fast = Annotated[
    bool | None,
    _switch(
        PROOF,
        "fast",
        "Leave out of the report what takes many builds: what steps and operators are worth, and advice.",
        envvar="MINBUILD_FAST",
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with settings. Default: minbuild.toml or \\[tool.minbuild] of pyproject.toml beside ARTIFACTS.",
    ),
]
