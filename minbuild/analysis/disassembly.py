"""The machine code of a function of a package, instruction by instruction, by Capstone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.toolchain import parse_target

_CURE = "Give the folder that minbuild reduce wrote with --package."
# Architecture by its name in a target: names of Capstone's constants, of the architecture and of its modes.
_MACHINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "x86_64": ("CS_ARCH_X86", ("CS_MODE_64",)),
    "aarch64": ("CS_ARCH_ARM64", ("CS_MODE_LITTLE_ENDIAN",)),
    "arm": ("CS_ARCH_ARM", ("CS_MODE_THUMB",)),
    "thumb": ("CS_ARCH_ARM", ("CS_MODE_THUMB", "CS_MODE_MCLASS")),
    "riscv64": ("CS_ARCH_RISCV", ("CS_MODE_RISCV64", "CS_MODE_RISCVC")),
    "loongarch64": ("CS_ARCH_LOONGARCH", ("CS_MODE_LOONGARCH64",)),  # from Capstone 6 on
}
_CODE = re.compile(r"\.?_*text|code", re.IGNORECASE)  # sections with instructions, whatever the format
_TARGET = re.compile(r"#?(0x[0-9a-f]+)$")
Symbol = Mapping[str, Any]


def disassemble(name: str, package: Path) -> tuple[str, ...]:
    """Lines with the instructions of the functions called `name` in every library of a package: the place in the file,
    bytes, mnemonic, and the function that a branch leads to. Raises BadInput where there is none, or no Capstone."""
    capstone = _capstone()
    report = json.loads(read_file(package / "report" / "report.json", _CURE))
    lines: list[str] = []
    for target in report["targets"]:
        symbols = [symbol for row in target["rows"] for symbol in row["symbols"]]
        for symbol in symbols:
            if any(name in (n, n.split("<")[0]) for n in symbol["names"]):
                lines += _function(capstone, package, target, symbol, symbols)
    if not lines:
        raise BadInput(
            f"{package}: no function called '{name}' is in its libraries. `minbuild why {name}` says what is, and the "
            "report lists all."
        )
    return tuple(lines)


def _capstone() -> Any:
    try:
        import capstone
    except ImportError as error:
        raise BadInput(
            "--asm: needs Capstone, which is not installed. Run pip install 'capstone>=5'."
        ) from error
    return capstone


def _function(
    capstone: Any, package: Path, target: Mapping[str, Any], symbol: Symbol, symbols: Sequence[Symbol]
) -> Iterator[str]:
    file = dict(target["files"])["Library"]
    start, size = symbol["offset"], symbol["bytes"]
    data = read_file(package / file, _CURE)[start : start + size]
    if len(data) != size:
        raise BadInput(f"{package / file}: is shorter than the report says. {_CURE}")
    yield f"{target['target']}: {' = '.join(symbol['names'])}, {size:,} bytes at {start:#x} of {file}"
    if not _CODE.match(symbol["section"]):
        yield f"  data of section {symbol['section']}"
        for at in range(0, size, 16):
            yield f"  {start + at:06x}  {data[at : at + 16].hex(' ')}"
        return
    machine = _machine(capstone, target["target"])
    if machine is None:
        yield f"  Capstone {capstone.__version__} does not know these instructions; other tools print the file."
        return
    for found in machine.disasm(data, start):
        place = _TARGET.search(found.op_str)
        leads = _name_at(int(place[1], 16), symbols) if place and _branches(capstone, found) else ""
        text = f"{found.mnemonic} {found.op_str}".strip()
        yield f"  {found.address:06x}  {found.bytes.hex():<20}  {text}{leads}"


def _machine(capstone: Any, target: str) -> Any:
    """The disassembler of a target; None where Capstone has none: its WebAssembly lacks vectors."""
    arch, modes = _MACHINES.get(parse_target(target).traits.arch, ("", ()))
    if not hasattr(capstone, arch):
        return None
    machine = capstone.Cs(getattr(capstone, arch), sum(getattr(capstone, mode) for mode in modes))
    machine.detail = True  # whether a branch is one
    machine.skipdata = True  # literals among the code
    return machine


def _branches(capstone: Any, found: Any) -> bool:
    if found.id == 0:  # data
        return False
    return any(found.group(group) for group in (capstone.CS_GRP_CALL, capstone.CS_GRP_JUMP))


def _name_at(place: int, symbols: Sequence[Symbol]) -> str:
    """The function at a place in the file, with the distance from its start; "" of none."""
    for symbol in symbols:
        if 0 <= place - symbol["offset"] < symbol["bytes"]:
            distance = place - symbol["offset"]
            return f"  <{symbol['names'][0]}{f' + {distance:#x}' if distance else ''}>"
    return ""
