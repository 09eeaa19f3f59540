"""The memory mappings of this process, from /proc/self/smaps of Linux."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mapped(NamedTuple):
    """Some memory: its addresses, the path of its file or "", and how the system marks it (VmFlags in proc(5))."""

    addresses: range
    path: str
    flags: frozenset[str]


def memory_map() -> Iterator[Mapped]:
    """All pieces, in order."""
    addresses, path = range(0), ""
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+)(?: +\S+){4} *(.*)", line):
            addresses, path = range(int(found[1], 16), int(found[2], 16)), found[3]
        elif line.startswith("VmFlags:"):
            yield Mapped(addresses, path, frozenset(line.split()[1:]))
