"""Options of building a trainer, by the panels of the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minbuild.cli.progress import SIZES
from minbuild.codegen.bindings import LANGUAGES
from minbuild.codegen.integrations import INTEGRATIONS
from minbuild.codegen.ort_abi import ABIS
from minbuild.planning.library_contents import COMPONENTS
from minbuild.report.boards import known_boards
from minbuild.toolchain import proven_targets, unproven_targets

TARGET, CONTENTS, PROOF = (
    "Targets and sizes",
    "Contents of the trainer",
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
        "--out",
        "-o",
        metavar="FOLDER",
        help="Folder for the package. An existing package is replaced, unless it holds files of yours (see --force).",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace a package although it holds foreign or edited files: foreign files stay, edited ones are "
        "overwritten.",
    ),
]
Targets = Annotated[
    list[str] | None,
    _option(
        TARGET,
        "TARGET",
        f"Target to build for. Repeatable. Default: this machine. Proven in CI: {', '.join(proven_targets())}. "
        "NOT PROVEN: "
        f"{', '.join(unproven_targets())}. Add :CPU for a newer processor, such as x86_64-linux-gnu:x86_64_v3.",
    ),
]
Dims = Annotated[
    list[str] | None,
    _option(
        TARGET, SIZES, "Fix a free dimension, such as batch=8: the trainer is smaller. Repeatable.", "--dim"
    ),
]
Compiler = Annotated[
    str | None,
    _option(TARGET, "PROGRAM", "A gcc or clang to use instead of the compiler that comes with minbuild."),
]
CMakeToolchain = Annotated[
    Path | None, _option(TARGET, "FILE", "A CMake toolchain file, such as that of the Android NDK.")
]
IncludeOp = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "OPERATOR",
        "Additional operator to include, such as Conv or com.microsoft:ConvGrad. Repeatable.",
    ),
]
ExcludeOp = Annotated[
    list[str] | None,
    _option(CONTENTS, "OPERATOR", "Operator to exclude from those of --ort-config. Repeatable."),
]
OrtConfig = Annotated[
    list[Path] | None,
    _option(
        CONTENTS,
        "FILE",
        "Configuration of an ONNX Runtime reduced build; its operators are included as well. Repeatable.",
    ),
]
Types = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "TYPE",
        f"Element types of the kernels to include, such as float,int64. Default: all. {_REPEATABLE}.",
    ),
]
With = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "COMPONENT",
        "Optional components of the library: "
        f"{_listed({name: what for name, (_, what) in COMPONENTS.items()})}. {_REPEATABLE}.",
        "--with",
    ),
]
ExportOutput = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "NAME",
        "Output of exported inference models. Default: the input of the loss. Repeatable; implies --with export.",
    ),
]
Bindings = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "LANGUAGE",
        f"Language bindings to include in the package: {_listed(dict(LANGUAGES))}. "
        f"{_REPEATABLE}; js implies --target wasm32. With wasm32 and wasm32-relaxed-simd its package has both modules.",
    ),
]
Integration = Annotated[
    list[str] | None,
    _option(
        CONTENTS,
        "NAME",
        f"The package as build systems and registries expect it, in integrations/: {_listed(dict(INTEGRATIONS))}. "
        f"{_REPEATABLE}.",
    ),
]
Abi = Annotated[
    str | None,
    _option(
        CONTENTS,
        "INTERFACE",
        "A library with another interface beside the trainer's own, with the model inside, on Linux: "
        f"{_listed(dict(ABIS))}. Implies --with properties,buffers,export.",
    ),
]
Reference = Annotated[
    Path | None,
    _option(
        PROOF,
        "FILE",
        "Recorded trajectory (.npz). The trainer must follow it within the noise of the recording.",
    ),
]
RequireProof = Annotated[
    bool | None,
    _option(
        PROOF,
        "",
        "Refuse, with exit code 6, a target that is NOT PROVEN: one whose programs do not run here.",
        "--require-proof/--allow-unproven",
        show_default=False,
    ),
]
Report = Annotated[
    str,
    _option(
        PROOF,
        "summary|full",
        "Report on the terminal; report/ in the package always has all of it.",
        "--report",
    ),
]
BoardName = Annotated[
    str | None,
    _option(
        PROOF,
        "BOARD",
        "Show the flash and RAM that remain on a board: "
        f"{_listed({name: chip for name, (_, chip) in known_boards().items()})}; or any, as flash=512K,ram=128K.",
        "--board",
    ),
]
Baseline = Annotated[
    Path | None,
    _option(PROOF, "FILE", "Earlier report.json or history to compare sizes with."),
]
History = Annotated[
    Path | None,
    _option(
        PROOF,
        "FILE",
        "File to append the sizes of this build to, for minbuild diff. A build over budget is not recorded.",
    ),
]
NoAnalysis = Annotated[
    bool | None,
    _option(
        PROOF,
        "",
        "Skip the size waterfall, the leave-one-out costs and the suggestions, which take many builds.",
        "--no-analysis/--analysis",
        show_default=False,
        envvar="MINBUILD_NO_ANALYSIS",
    ),
]
Time = Annotated[
    bool | None,
    _switch(
        PROOF,
        "time",
        "Measure milliseconds and memory of each operator on this machine, for the report, whose files then have the "
        "measured price of --ram, too. Times vary from run to run.",
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with settings. Default: minbuild.toml or \\[tool.minbuild] of pyproject.toml beside ARTIFACTS.",
    ),
]
