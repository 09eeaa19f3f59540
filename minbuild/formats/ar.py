"""Members of a static library (`ar` format, with the long names of GNU, BSD and Microsoft)."""

from __future__ import annotations

from minbuild.errors import BadInput

MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes before each member: name 16, dates and owners 32, size 10, end mark 2


def members(label: str, data: bytes) -> dict[str, bytes]:
    """Member name -> its bytes, symbol indexes left out. `label` names the file in errors. Raises
    BadInput."""
    if data[: len(MAGIC)] != MAGIC:
        raise BadInput(f"{label}: not a static library. Build it again.")
    found: dict[str, bytes] = {}
    names, at = b"", len(MAGIC)
    while at < len(data):
        header = data[at : at + _HEADER]
        digits = header[48:58].strip()
        if len(header) < _HEADER or header[58:] != b"`\n" or not digits.isdigit():
            raise BadInput(f"{label}: damaged static library at byte {at}. Build it again.")
        start, size = at + _HEADER, int(digits)
        if start + size > len(data):
            raise BadInput(
                f"{label}: truncated static library: the member at byte {at} should end at "
                f"{start + size}, the file has {len(data)} bytes. Build it again."
            )
        body = data[start : start + size]
        title = header[:16].rstrip()
        if title == b"//":
            names = body
        elif title.startswith(b"#1/") and title[3:].isdigit():
            length = int(title[3:])
            found[body[:length].rstrip(b"\0").decode("utf-8", "replace")] = body[length:]
        elif title[:1] == b"/" and title[1:].isdigit():
            # Microsoft's names end with a zero, GNU's with a slash and a line feed.
            long = names[int(title[1:]) :].split(b"\n", 1)[0].split(b"\0", 1)[0]
            found[long.rstrip(b"/").decode("utf-8", "replace")] = body
        elif not title.startswith((b"/", b"__.SYMDEF")):
            found[title.rstrip(b"/").decode("utf-8", "replace")] = body
        at = start + size + size % 2
    return found
