"""Cycles per multiply-add of the innermost loops of a package's Cortex-M4F library, by the table of the core's manual.

    python tests/slow/measure_chip_cycles.py PACKAGE [OTHER_PACKAGE]

Writes what reports/baseline/chip_cycles.md shows.
Counts are exact for what they are: every instruction of one round of a loop, weighted by the cycles that ARM DDI 0439
(Cortex-M4 Technical Reference Manual, tables 3-1 and 7-1) lists for it. Not counted: waits of an instruction for the
result of the one before it, flash wait states, and rounds that leave the loop. No program runs. Needs Capstone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capstone

TARGET = "cortex-m4f"
TAKEN = 3  # cycles of a branch that is taken: 1 + P, and P is 1 to 3
_CYCLES: Mapping[str, int] = {
    **dict.fromkeys(("vmla.f32", "vmls.f32", "vnmla.f32", "vnmls.f32"), 3),
    **dict.fromkeys(("vfma.f32", "vfms.f32", "vfnma.f32", "vfnms.f32"), 3),
    **dict.fromkeys(("vdiv.f32", "vsqrt.f32"), 14),
    **dict.fromkeys(("ldr", "ldrb", "ldrh", "str", "strb", "strh", "vldr", "vstr"), 2),
    **dict.fromkeys(("udiv", "sdiv"), 12),
}


@dataclass(frozen=True)
class Loop:
    """An innermost loop of `function`: cycles and multiply-adds of one round."""

    function: str
    start: int
    cycles: int
    multiply_adds: int
    instructions: int

    @property
    def each(self) -> float:
        """Cycles per multiply-add."""
        return self.cycles / self.multiply_adds


def cycles_of(mnemonic: str, operands: str) -> int:
    """Cycles of an instruction that is not a taken branch; its suffixes .w and .n change none."""
    name = re.sub(r"\.[wn]$", "", mnemonic)
    if name in _CYCLES:
        return _CYCLES[name]
    registers = operands.partition("{")[2].count(",") + 1
    if name.startswith(("ldm", "stm", "push", "pop", "vldm", "vstm", "vpush", "vpop")):
        return 1 + _registers(operands, registers)
    return 3 if name in ("ldrd", "strd") else 1


def _registers(operands: str, listed: int) -> int:
    """Registers of a list, which Capstone writes one by one, or as a range."""
    found = re.findall(r"s(\d+)-s(\d+)", operands)
    return sum(int(last) - int(first) + 1 for first, last in found) or listed


def loops_of(name: str, code: bytes) -> Iterator[Loop]:
    """The innermost loops of a function that have multiply-adds: VMLA and its like, or pairs of a product and a sum.
    `name` is the function, `code` its bytes."""
    machine = capstone.Cs(capstone.CS_ARCH_ARM, capstone.CS_MODE_THUMB + capstone.CS_MODE_MCLASS)
    machine.skipdata = True
    found = list(machine.disasm(code, 0))
    places = {each.address: i for i, each in enumerate(found)}
    ranges = []
    for index, each in enumerate(found):
        target = re.fullmatch(r"(?:r\d+, )?#?(0x[0-9a-f]+|\d+)", each.op_str)
        if (
            each.mnemonic.startswith(("b", "cb"))
            and not each.mnemonic.startswith(("bl", "bic", "bf"))
            and target
        ):
            start = places.get(int(target[1], 0))
            if start is not None and start <= index:
                ranges.append(range(start, index + 1))
    for loop in ranges:
        if any(other != loop and loop.start <= other.start and other.stop <= loop.stop for other in ranges):
            continue
        body: Sequence[Any] = found[loop.start : loop.stop]
        names = [each.mnemonic for each in body]
        fused = sum(bool(re.match(r"vn?ml[as]|vfn?m[as]", n)) for n in names)
        parted = min(
            sum(n.startswith("vmul.f32") for n in names), sum(n.startswith(("vadd", "vsub")) for n in names)
        )
        if fused + parted < 2:
            continue
        cycles = sum(cycles_of(each.mnemonic, each.op_str) for each in body[:-1]) + TAKEN
        yield Loop(name, body[0].address, cycles, fused + parted, len(body))


def loops_in(package: Path) -> list[Loop]:
    """The loops of all functions of a package's library, those of most multiply-adds first."""
    report = json.loads((package / "report/report.json").read_text())
    target = next(t for t in report["targets"] if t["target"] == TARGET)
    data = (package / dict(target["files"])["Library"]).read_bytes()
    found: list[Loop] = []
    for row in target["rows"]:
        for symbol in row["symbols"]:
            if re.match(r"\.?_*text|code", symbol["section"], re.IGNORECASE):
                code = data[symbol["offset"] : symbol["offset"] + symbol["bytes"]]
                found += loops_of(symbol["names"][0], code)
    return sorted(found, key=lambda loop: (-loop.multiply_adds, loop.function, loop.start))


def main(packages: Sequence[str]) -> None:
    for package in packages:
        print(
            f"{package}\n{'loop':<60} {'instr.':>6} {'cycles':>6} {'multiply-adds':>13} {'cycles each':>11}"
        )
        for loop in loops_in(Path(package)):
            where = f"{loop.function[:50]} + {loop.start:#x}"
            print(
                f"{where:<60} {loop.instructions:>6} {loop.cycles:>6} {loop.multiply_adds:>13} {loop.each:>11.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
