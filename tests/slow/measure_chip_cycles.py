"""Cycles per multiply-add of the innermost loops of packages' Cortex-M libraries, by tables of the cores.

    python tests/slow/measure_chip_cycles.py PACKAGE [OTHER_PACKAGE ...]

Writes what reports/baseline/chip_cycles.md shows.
Counts are exact for what they are: every instruction of one round of a loop, timed by a table of the core. Not counted:
waits for results and for flash, caches that miss, and rounds that leave the loop. No program runs. Needs llvm-mc."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FUSED = re.compile(r"vn?ml[as]\.f32|vfn?m[as]\.f32")
_PRODUCT, _SUM = re.compile(r"vmul\.f32"), re.compile(r"v(add|sub)\.f32")
_LOADED = re.compile(r"(ldr|str|vldr|vstr|ldm|stm|vldm|vstm|push|pop|vpush|vpop)")
_REGISTER = re.compile(r"\b(?:[rsdq]\d+|lr|sp|pc)\b")


@dataclass(frozen=True)
class Instruction:
    """An instruction at `address`, and how many bytes it has."""

    address: int
    size: int
    name: str
    operands: str

    @property
    def target(self) -> int | None:
        """The address that a branch goes to."""
        if not re.match(r"(b|cbn?z|le)", self.name) or re.match(r"(bl|bx|bic|bf)", self.name):
            return None
        offset = re.search(r"#(-?\d+)$", self.operands)
        return self.address + 4 + int(offset[1]) if offset else None

    @property
    def is_vector(self) -> bool:
        return self.name.startswith("v") and bool(re.search(r"\bq\d", self.operands))

    @property
    def moved(self) -> int:
        """Words that a load or store moves, 0 for others."""
        if not _LOADED.match(self.name):
            return 0
        listed = re.search(r"{(.*)}", self.operands)
        if listed is None:
            return 2 if self.name in ("ldrd", "strd") or re.match(r"d\d", self.operands) else 1
        registers = len(_REGISTER.findall(listed[1]))
        return registers * (2 if listed[1].startswith("d") else 1)

    def reads(self, other: Instruction) -> bool:
        """True if it needs what `other`, right before it, has just written."""
        written = _REGISTER.search(other.operands)
        return (
            written is not None
            and not other.name.startswith(("str", "vstr", "cmp"))
            and bool(re.search(rf"\b{written[0]}\b", self.operands.partition(",")[2]))
        )


def _cortex_m4(body: Sequence[Instruction]) -> float:
    """One after the other, by ARM DDI 0439, tables 3-1 and 7-1. A taken branch has 1 + P cycles, and P is 1 to 3."""
    cycles = 0
    for each in body[:-1]:
        if "{" in each.operands or each.moved:
            cycles += 1 + each.moved
        elif _FUSED.match(each.name):
            cycles += 3
        else:
            cycles += (
                14 if re.match(r"vdiv|vsqrt", each.name) else 12 if re.match(r"[us]div", each.name) else 1
            )
    return cycles + 3


def _cortex_m7(body: Sequence[Instruction]) -> float:
    """In order, two at a time: one of floating point and one that moves 64 bits of memory a cycle, and none of these
    beside VMLA and its like, which take all ports of the registers. The manual has no table; this is the scheduling
    model of LLVM, with what measurements add to it. Divisions take 16 cycles, predicted branches one."""
    cycles, at = 0, 0
    while at < len(body):
        first, second = body[at], body[at + 1] if at + 1 < len(body) else None
        cycles += 16 if re.match(r"vdiv|vsqrt", first.name) else max(1, (first.moved + 1) // 2)
        at += 1
        if second is None or second.reads(first):
            continue
        float_ones = sum(each.name.startswith("v") and not each.moved for each in (first, second))
        memory = sum(each.moved > 0 for each in (first, second))
        fused = sum(bool(_FUSED.match(each.name)) for each in (first, second))
        floats_moved = any(each.moved and each.name.startswith("v") for each in (first, second))
        if float_ones < 2 and memory < 2 and not (fused and floats_moved) and second.moved <= 2:
            at += 1
    return cycles


def _cortex_m55(body: Sequence[Instruction]) -> float:
    """In order, one a cycle; vectors pass each unit, of memory or of arithmetic, in two, while the other goes on. After
    public models of the core: Arm's own guide has no public table of these."""
    rounds, time, start = 8, 0, 0
    free = {"memory": 0, "arithmetic": 0, "integer": 0}
    for turn in range(rounds):
        if turn == rounds // 2:
            start = time
        for each in body:
            floats = each.name.startswith("v")
            unit = "memory" if each.moved else "arithmetic" if floats else "integer"
            at = max(time, free[unit])
            free[unit] = at + (2 if each.is_vector else max(1, each.moved // 2))
            if re.match(r"vdiv|vsqrt", each.name):
                free[unit] = at + 14
            time = at + 1
    return (time - start) / (rounds - rounds // 2)


_CORES: Mapping[str, tuple[Callable[[Sequence[Instruction]], float], str]] = {
    "cortex-m4f": (_cortex_m4, "+vfp4d16sp"),
    "cortex-m7": (_cortex_m7, "+fp-armv8d16sp"),
    "cortex-m55": (_cortex_m55, "+mve.fp,+fp-armv8d16sp"),
}


@dataclass(frozen=True)
class Loop:
    """An innermost loop of `function`: cycles and multiply-adds of one round."""

    function: str
    start: int
    cycles: float
    multiply_adds: int
    instructions: int

    @property
    def each(self) -> float:
        """Cycles per multiply-add."""
        return self.cycles / self.multiply_adds


def disassembled(code: bytes, features: str) -> list[Instruction]:
    """The instructions of Thumb code; what is none, such as constants, is left out."""
    triple = "thumbv8.1m.main-none-eabi" if "mve" in features else "thumbv7em-none-eabi"
    command = ("llvm-mc", "--disassemble", f"-triple={triple}", f"-mattr={features}", "-show-encoding")
    text = " ".join(f"0x{byte:02x}" for byte in code)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found: list[Instruction] = []
    at = 0
    for line in result.stdout.splitlines():
        parts = re.fullmatch(r"\s*(\S+)\s*(.*?)\s*@ encoding: \[(.*)\]", line)
        if parts is None:
            continue
        encoded = bytes(int(byte, 16) for byte in parts[3].split(","))
        at = code.find(encoded, at)  # past what is no instruction
        found.append(Instruction(at, len(encoded), parts[1].removesuffix(".w"), parts[2]))
        at += len(encoded)
    return found


def _multiply_adds(body: Sequence[Instruction]) -> int:
    """VMLA and its like, or pairs of a product and a sum; those of vectors have four."""

    def count(kind: re.Pattern[str]) -> int:
        return sum(4 if each.is_vector else 1 for each in body if kind.match(each.name))

    return count(_FUSED) + min(count(_PRODUCT), count(_SUM))


def loops_of(name: str, code: bytes, core: str) -> Iterator[Loop]:
    """The innermost loops of a function that have multiply-adds. `name` is the function, `code` its bytes, `core` the
    target that it is for."""
    timed, features = _CORES[core]
    found = disassembled(code, features)
    places = {each.address: i for i, each in enumerate(found)}
    ranges = []
    for index, each in enumerate(found):
        start = places.get(-1 if each.target is None else each.target)
        if start is not None and start <= index:
            ranges.append(range(start, index + 1))
    for loop in ranges:
        if any(other != loop and loop.start <= other.start and other.stop <= loop.stop for other in ranges):
            continue
        body = found[loop.start : loop.stop]
        multiply_adds = _multiply_adds(body)
        if multiply_adds >= 2:
            yield Loop(name, body[0].address, timed(body), multiply_adds, len(body))


def loops_in(package: Path) -> Iterator[tuple[str, list[Loop]]]:
    """Each Cortex-M target of a package with the loops of its library, those of most multiply-adds first."""
    report = json.loads((package / "report/report.json").read_text())
    for target in report["targets"]:
        core = target["target"]
        if core not in _CORES:
            continue
        data = (package / dict(target["files"])["Library"]).read_bytes()
        found: list[Loop] = []
        for row in target["rows"]:
            for symbol in row["symbols"]:
                if re.match(r"\.?_*text|code", symbol["section"], re.IGNORECASE):
                    code = data[symbol["offset"] : symbol["offset"] + symbol["bytes"]]
                    found += loops_of(symbol["names"][0], code, core)
        yield core, sorted(found, key=lambda loop: (-loop.multiply_adds, loop.function, loop.start))


def main(packages: Sequence[str]) -> None:
    for package in packages:
        for core, loops in loops_in(Path(package)):
            print(f"{package}, {core}")
            print(f"{'loop':<60} {'instr.':>6} {'cycles':>6} {'multiply-adds':>13} {'cycles each':>11}")
            for loop in loops:
                where = f"{loop.function.replace('minbuild::', '')[:50]} + {loop.start:#x}"
                print(
                    f"{where:<60} {loop.instructions:>6} {loop.cycles:>6g} {loop.multiply_adds:>13} {loop.each:>11.2f}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
