"""Bytes of flash and stack that a trainer takes on six targets: reports/baseline/flash.md.

    python tests/slow/measure_flash.py [--target T]... [NAME...]

Of each case and target: the default build, and `--profile smallest` with either flavor, a plan that is read, in the
smaller encoding, and one that is compiled in, with the step calls that are smaller (searched for on the targets of
`_SEARCHED`, tables on others); the latter also without the checks of `SAFETY_OFF`. A library counts with what of it is
loaded, a checkpoint with what it has beyond the bytes of the parameters. Batch sizes are free, files and saving are
on. The stack is that of whole sessions on a Cortex-M4F, measured under qemu as `minbuild reduce` does it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minbuild.options.build_options import BuildOptions
    from minbuild.planning.compiled_model import CompiledModel
    from minbuild.toolchain import Target

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]
CASES = ("mlp", "lenet", "mobilenetv2", "bert_tiny", "lstm_cls")
TARGETS = (
    *("x86_64-linux-gnu", "aarch64-linux-gnu", "arm-linux-gnueabihf"),
    *("riscv64-linux-gnu", "wasm32", "cortex-m4f"),
)
_CHIP, _STACKS = "cortex-m4f", ("mlp", "lenet")
_SEARCHED = ("x86_64-linux-gnu", _CHIP)  # step calls take ten links and more on each
HEAD = (
    "case",
    "balanced: checkpoint",
    "plan",
    "library",
    "together",
    "smallest: checkpoint",
    "plan",
    "library",
    "together",
    "compiled",
    "together",
    "without safety",
    "together",
)
# The checks that are counted apart: what a library has beyond loading, training, evaluating and saving.
SAFETY_OFF = {"rollback": "off", "finite_checks": "off", "checkpoint_checks": "off"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", help="repeat it for several")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    lines: list[str] = []
    names, targets = options.names or CASES, options.target or TARGETS
    for line in chain(_lines(names, targets), _stacks(names, targets)):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        lines.append(line)
    if not options.names and not options.target:
        (ROOT / "reports" / "baseline" / "flash.md").write_text("\n".join(lines) + "\n", "utf-8")


def _lines(names: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    from case_sets import folders

    from minbuild.toolchain import parse_target

    planned = {f.name: _planned(f) for f in folders() if f.name in names}
    models = {name: planned[name] for name in names if name in planned}
    if not models:
        raise SystemExit(f"none of {', '.join(names)} is here")
    yield "Bytes of flash: what is loaded of the library, the plan, and the checkpoint beyond the parameters' bytes."
    for target in targets:
        yield from ("", f"## {target}", "", f"| {' | '.join(HEAD)} |", "|---|" + "--:|" * (len(HEAD) - 1))
        for name, pair in models.items():
            cells = (f"{cell:,}" if cell else "-" for cell in _cells(*pair, parse_target(target)))
            yield f"| {name} | {' | '.join(cells)} |"


def _planned(folder: Path) -> tuple[CompiledModel, CompiledModel]:
    """The model as it is planned by default, and as the profile `smallest` does it."""
    from minbuild.ir.kernel_choice import KernelChoice
    from minbuild.options.plan_options import PlanOptions
    from minbuild.planning.compile import compile_model
    from minbuild.planning.compiled_model import with_compact_checkpoint

    least = compile_model(
        folder, {}, {}, options=PlanOptions(kernels=KernelChoice(packs=False), kernel_names=False)
    )
    return compile_model(folder, {}, {}), with_compact_checkpoint(least)


def _stacks(names: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Peaks of the stack on the microcontroller."""
    if _CHIP not in targets:
        return
    yield from (
        "",
        f"## Stack on {_CHIP}, bytes",
        "",
        "| case | profile | peak | deepest call |",
        "|---|---|--:|---|",
    )
    for name in (name for name in _STACKS if name in names):
        for profile in ("balanced", "smallest"):
            peak, call = _stack(name, profile)
            yield f"| {name} | {profile} | {peak:,} | {call} |"


def _stack(name: str, profile: str) -> tuple[int, str]:
    """The peak of the stack that a proven run took, and the call that took it."""
    from case_sets import folders

    folder = next(f for f in folders() if f.name == name)
    with tempfile.TemporaryDirectory() as work:
        command = [
            sys.executable,
            "-m",
            "minbuild",
            "reduce",
            str(folder),
            "--out",
            f"{work}/dist",
            "--no-analysis",
        ]
        options = ["--target", _CHIP, "--profile", profile, "--require-proof"]
        subprocess.run([*command, *options], check=True, capture_output=True, cwd=ROOT)
        report = json.loads((Path(work) / "dist/report/report.json").read_text("utf-8"))
    stack = report["targets"][0]["verification"]["stack"]
    return stack["peak"], max(stack["calls"], key=stack["calls"].get)


def _cells(model: CompiledModel, compact: CompiledModel, target: Target) -> Iterator[int]:
    """The numbers of a row; 0 where a plan cannot be compiled in."""
    from minbuild.codegen.library_sizer import LibrarySizer
    from minbuild.codegen.plan_encoding_choice import choose_encoding
    from minbuild.codegen.straight_choice import choose_straight
    from minbuild.errors import BadInput, Unsupported
    from minbuild.options.build_options import COMPILED, INTERPRETED, in_profile
    from minbuild.planning.kernel_selection import ExtraRequirements
    from minbuild.toolchain import find_toolchain

    values = sum(prod(p.shape) * p.element.size for p in model.artifacts.checkpoint.parameters)
    plan = len(model.plan_bytes)
    framing = len(model.checkpoint) - values
    library = _loaded(model, in_profile("balanced"), target)
    yield from (framing, plan, library, framing + plan + library)
    smallest = replace(in_profile("smallest"), flavor=INTERPRETED)
    sizer = LibrarySizer(ExtraRequirements(), find_toolchain(build_options=smallest), (target,), cmake=False)
    (reads,) = choose_encoding((compact,), smallest, sizer).models
    framing, plan = len(compact.initial_checkpoint) - values, len(reads.plan_bytes)
    library = _loaded(reads, smallest, target)
    yield from (framing, plan, library, framing + plan + library)
    smallest = replace(smallest, flavor=COMPILED)
    try:
        if str(target) in _SEARCHED:
            (compact,) = choose_straight((compact,), smallest, sizer).models
        for safety in ({}, SAFETY_OFF):
            library = _loaded(compact, replace(smallest, **safety), target)
            yield from (library, framing + library)
    except (BadInput, Unsupported):
        yield from (0, 0, 0, 0)


def _loaded(model: CompiledModel, build_options: BuildOptions, target: Target) -> int:
    """Bytes of a library that are loaded."""
    from minbuild.codegen.library_builder import build_checked
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import find_toolchain

    contents = contents_of([model], build_options=build_options)
    toolchain = find_toolchain(build_options=build_options)
    library = build_checked(contents, model.registry, target, toolchain)
    return sum(section.file_size for section in library.binary.sections if section.allocated)


if __name__ == "__main__":
    main()
