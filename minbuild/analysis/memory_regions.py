"""Where the bytes of a library are while it runs, by the names of its sections."""

from __future__ import annotations

from collections.abc import Mapping

from minbuild.ir import Binary, Section
from minbuild.ir.size_report import Region, Static

# In the order of the report: heading, and where it is.
REGIONS: Mapping[str, tuple[str, str]] = {
    "code": ("Code", "flash"),
    "constants": ("Constants", "flash"),
    "tables": ("Tables for loading and linking", "flash"),
    "data": ("Initialised data", "flash and RAM"),
    "zeroed": ("Zeroed data", "RAM"),
    "unloaded": ("Headers and padding", "the file only"),
}
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "constants": (".rodata", ".rdata", ".data.rel.ro", ".eh_frame", "__const", "__cstring", "__literal"),
    "code": (".text", ".plt", ".init", ".fini", "__text", "__stub", "code"),
    "data": (".data", ".sdata", ".tdata", "__data"),
    "zeroed": (".bss", ".sbss", ".tbss", "__bss", "__common"),
}  # of names of sections, the first that fits


def region_of(section: Section) -> str:
    """A key of REGIONS."""
    if not section.allocated:
        return "unloaded"
    return next((region for region, names in _PREFIXES.items() if section.name.startswith(names)), "tables")


def regions_of(full: Binary, trimmed: Binary) -> tuple[Region, ...]:
    """Bytes of both builds in each region that either of them has: those in files add up to the files, those in memory
    to what their sections take there."""

    def bytes_of(binary: Binary, region: str) -> tuple[int, int]:
        found = [s for s in binary.sections if region_of(s) == region]
        file = sum(s.file_size for s in found)
        if region == "unloaded":
            file += len(binary.data) - sum(s.file_size for s in binary.sections)
        return file, sum(s.size for s in found if s.allocated)

    pairs = ((name, *REGIONS[name], bytes_of(full, name), bytes_of(trimmed, name)) for name in REGIONS)
    rows = (
        Region(
            name,
            title=title,
            place=place,
            full_file=f[0],
            trimmed_file=t[0],
            full_memory=f[1],
            trimmed_memory=t[1],
        )
        for name, title, place, f, t in pairs
    )
    return tuple(r for r in rows if r.full_file or r.trimmed_file or r.full_memory or r.trimmed_memory)


def static_of(binary: Binary) -> Static:
    """RAM of a library's own writable data."""
    sizes = {"data": 0, "zeroed": 0}
    for section in binary.sections:
        if region_of(section) in sizes:
            sizes[region_of(section)] += section.size
    return Static(sizes["data"], sizes["zeroed"])
