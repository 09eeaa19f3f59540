"""Section headers of a finished library, down to those that somebody reads.

Loaders read program headers. Linkers, and Android's loader, look for the dynamic symbols, their strings, the
dynamic table and the sections that symbols stand in; the other headers and their names serve debuggers, which
have the twin. Symbols hold the numbers of sections, so headers go from behind the last number that is used.
"""

from __future__ import annotations

import struct

from minbuild.size import elf

_DYNAMIC = 6  # section type
# Where the ELF header says where section headers start, where their size, count and names stand; formats of
# the first and of a section header.
_FORMS = {64: (40, 58, "<Q", "<IIQQQQIIQQ"), 32: (32, 46, "<I", "<IIIIIIIIII")}


def trim_headers(data: bytes) -> bytes:
    """A stripped library with the fewest section headers. What is loaded stays as it is, and so does a whole
    file in which more than section names and headers stands behind what is loaded. Raises BadInput for
    damaged ones."""
    file = elf.parse("library", data)
    start_at, count_at, word, layout = _FORMS[file.bits]
    (start,) = struct.unpack_from(word, data, start_at)
    _, count, names = struct.unpack_from("<HHH", data, count_at)
    headers = list(struct.iter_unpack(layout, data[start : start + count * struct.calcsize(layout)]))
    end = max(s.offset + s.file_size for s in file.segments if s.type == elf.LOAD)
    if any(h[4] + h[5] > end for i, h in enumerate(headers) if h[1] != elf.NOBITS and i != names):
        return data
    last = max(s.section for s in file.symbols(elf.DYNSYM) if s.defined)
    kept = [i for i, h in enumerate(headers) if i <= last or i == names or h[1] in (elf.DYNSYM, _DYNAMIC)]
    kept = sorted({*kept, *(headers[i][6] for i in kept if headers[i][1] in (elf.DYNSYM, _DYNAMIC))})

    titles = ["", *(s.name for s in file.sections)]
    text = b"".join(titles[i].encode() + b"\0" for i in kept)
    rows, title = [], 0
    for i in kept:
        kind, flags, address, offset, size, link, *rest = headers[i][1:]
        if i == names:
            offset, size = end, len(text)
        link = kept.index(link) if link in kept else 0
        rows.append((title, kind, flags, address, offset, size, link, *rest))
        title += len(titles[i]) + 1
    body = data[:end] + text + bytes(-(end + len(text)) % 8)
    changed = bytearray(body + b"".join(struct.pack(layout, *row) for row in rows))
    struct.pack_into(word, changed, start_at, len(body))
    struct.pack_into("<HH", changed, count_at + 2, len(kept), kept.index(names))
    return bytes(changed)
