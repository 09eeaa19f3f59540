"""Why a symbol or an operator is in a package: from nodes to kernel to symbol, read from the package alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from minbuild.errors import BadInput
from minbuild.formats import ar, elf
from minbuild.frontend.files import read_file

_CURE = "Give the folder that minbuild reduce wrote with --package."
_NODES = 6  # how many are named before the rest is counted
Row = Mapping[str, Any]


def why(name: str, package: Path) -> tuple[str, ...]:
    """The chains that lead to `name`, a line each: an operator of the model, a kernel file, a symbol, a part of the
    runtime, or a function of the C library. Raises BadInput where the package has nothing of that name."""
    report = json.loads(read_file(package / "report" / "report.json", _CURE))
    lines: list[str] = []
    for target in report["targets"]:
        found = list(_chains(name, target, package))
        if found and len(report["targets"]) > 1:
            lines.append(f"{target['target']}:")
        lines += found
    if lines:
        return tuple(lines)
    names = sorted({n for target in report["targets"] for n in _names(target)})
    close = get_close_matches(name, names, 3, 0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else " The report lists what is there."
    called = sorted({n for target in report["targets"] for n in target["imports"]})
    outside = f"Outside of itself it calls {', '.join(called) or 'nothing'}."
    raise BadInput(f"{package}: nothing called '{name}' is in its library.{hint} {outside}")


def _names(target: Mapping[str, Any]) -> Iterator[str]:
    yield from target["imports"]
    for row in target["rows"]:
        yield row["name"]
        yield from row["users"]
        for symbol in row["symbols"]:
            yield from symbol["names"]


def _chains(name: str, target: Mapping[str, Any], package: Path) -> Iterator[str]:
    rows = target["rows"]
    for row in rows:
        own = row["name"].split(" (")[0]  # without the file that shared code is in
        if name in (row["name"], own) or name in row["users"] and row["kind"] == "operator":
            yield _row(row, rows)
        for symbol in row["symbols"]:
            if any(n == name or n.split("<")[0] == name for n in symbol["names"]):
                yield f"{_asked(row, rows)} -> {' = '.join(symbol['names'])}, {symbol['bytes']:,} bytes"
    if name in target["imports"]:
        callers = _callers(name, target["target"], package)
        said = "; ".join(f"{_file(caller, rows)} -> {name} (C library)" for caller in callers)
        yield said or f"the library -> {name} (C library)"


def _row(row: Row, rows: Sequence[Row]) -> str:
    symbols = ", ".join(n for symbol in row["symbols"] for n in symbol["names"][:1])
    return f"{_asked(row, rows)}: {row['bytes']:,} bytes" + (f" in {symbols}" if symbols else "")


def _asked(row: Row, rows: Sequence[Row]) -> str:
    """The chain of causes of a row: nodes to a kernel file, kernel files to shared code, every trainer to the
    runtime."""
    if row["kind"] == "operator":
        shown = ", ".join(row["nodes"][:_NODES])
        more = f" and {len(row['nodes']) - _NODES} more" if len(row["nodes"]) > _NODES else ""
        return f"nodes {shown}{more} ({', '.join(row['users'])}) -> kernels/{row['name']}.cc"
    if row["kind"] == "shared":
        users = [r for r in rows if r["kind"] == "operator" and r["name"] in row["users"]]
        return "; ".join(_asked(r, rows) for r in users) + f" -> {row['name']}"
    return f"every trainer -> {row['name']}"


def _file(member: str, rows: Sequence[Row]) -> str:
    stem = member.split(".")[0].rpartition("_")[2]
    row = next((r for r in rows if r["kind"] == "operator" and member.startswith(r["name"])), None)
    return f"every trainer -> {stem}" if row is None else _asked(row, rows)


def _callers(name: str, target: str, package: Path) -> tuple[str, ...]:
    """Objects of the static library that ask for a function they do not define."""
    archive = package / "lib" / target / "libminbuild.a"
    if not archive.is_file():
        return ()
    found = []
    for member, data in ar.members(str(archive), archive.read_bytes()).items():
        if data[:4] != b"\x7fELF":
            continue
        symbols = elf.parse(member, data).symbols(elf.SYMTAB)
        if any(s.name == name and not s.defined for s in symbols):
            found.append(member)
    return tuple(sorted(found))
