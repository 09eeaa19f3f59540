"""Generated blocks of docs/guides: targets and boards from their tables in the code, step times from the records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from minbuild.docgen.markdown import code, recorded_rows, table
from minbuild.report.boards import known_boards
from minbuild.toolchain.targets import Traits, known_targets, parse_target, proven_targets

_FILES = {
    "elf": "`.so`, `.a`",
    "image": "`.a`",
    "wasm": "`.wasm`, `.a`",
    "macho": "`.dylib`, `.a`",
    "pe": "`.dll`, `.a`",
}
_EMULATORS = ("node", "wine", "qemu-system-arm")  # those of single machines; the others are in qemu-user
_CORE = re.compile(r"Cortex-M\d+F?")
_OF_CORES = {"Cortex-M33": "cortex-m4f"}  # cores that run the code of another one's target


def guide_blocks(root: Path) -> Mapping[str, Callable[[], str]]:
    """The blocks by name, with the records of the checkout at `root`."""
    return {
        "targets": targets_table,
        "boards": boards_table,
        "profiles": partial(_profiles_table, root),
        "webassembly": partial(_webassembly, root),
    }


def targets_table() -> str:
    """Markdown: every target, in rows of those that are alike."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(known_targets(), key=_order):
        traits = parse_target(name).traits
        proven = "yes" if name in proven_targets() else "NOT PROVEN"
        rows.setdefault((_library(traits), _proof(traits), proven), []).append(name)
    cells = [[", ".join(map(code, names)), *row] for row, names in rows.items()]
    return table(["target", "library", "proof", "in the project's CI"], cells)


def _order(name: str) -> tuple[int, bool, bool, str]:
    traits = parse_target(name).traits
    return list(_FILES).index(traits.format), bool(traits.android), name not in proven_targets(), name


def _library(traits: Traits) -> str:
    notes = (
        "; memory that workers share" if traits.shares_memory else "",
        "; for Android" if traits.android else "",
    )
    return _FILES[traits.format] + "".join(notes)


def _proof(traits: Traits) -> str:
    """The means to run a program of the target."""
    if traits.emulator in _EMULATORS:
        return f"with `{traits.emulator}`"
    if traits.emulator:
        return "on such a machine, elsewhere with `qemu-user`"
    return "on such a machine only" if traits.os == "macos" else "none"


def boards_table() -> str:
    """Markdown: the boards of `--board`, each with the target of its core."""
    rows = []
    for name, (board, chip) in known_boards().items():
        core = _CORE.findall(chip)[0]
        target = _OF_CORES.get(core) or parse_target(core.lower()).name
        rows.append([code(name), chip, f"{board.flash:,}", f"{board.ram:,}", code(target)])
    return table(["board", "chip", "flash, bytes", "RAM, bytes", "target"], rows, "llrrl")


def _profiles_table(root: Path) -> str:
    """Bytes of two profiles, and their step times beside ONNX Runtime's at both ends of the recorded batches."""
    baseline = root / "reports" / "baseline"
    times = {(row[0], row[1]): row for row in recorded_rows((baseline / "speed.md").read_text("utf-8"))}
    rows = []
    for each in json.loads((baseline / "profiles.json").read_text("utf-8")):
        cells = [code(each["case"])]
        for profile, ratio in (("balanced", 4), ("fastest", 9)):
            at = [times[each["case"], batch][ratio] for batch in ("1", "32")]
            cells += [f"{each['profiles'][profile]['bytes']:,}", *at]
        rows.append(cells)
    samples = ["1 sample", "32 samples"]
    return table(["case", "bytes", *samples, "fastest, bytes", *samples], rows, "lrrrrrr")


def _webassembly(root: Path) -> str:
    """A paragraph: the ranges of the recorded ratios."""
    rows = recorded_rows((root / "reports" / "baseline" / "wasm.md").read_text("utf-8"))
    native, relaxed, narrow, narrow_relaxed = ([float(row[at]) for row in rows] for at in range(5, 9))
    return (
        "WebAssembly's vectors have 128 bits. Beside native code with such vectors a step takes "
        f"{min(narrow_relaxed):.2f} to {max(narrow_relaxed):.2f} times as\nlong with relaxed SIMD and "
        f"{min(narrow):.2f} to {max(narrow):.2f} without; beside a processor's wider vectors up to "
        f"{max(relaxed):.2f} and {max(native):.2f} times\n"
        "([measurements](../reference/measurements.md#webassembly-beside-native-code)).\n"
    )
