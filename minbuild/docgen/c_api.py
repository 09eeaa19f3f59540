"""docs/reference/c-api.md: every declaration of trainer.h with the comment that stands before it."""

from __future__ import annotations

import re
from pathlib import Path

_HEAD = """# C API

The declarations of `include/minbuild/trainer.h`, which every package contains, in the order of the file. One session
trains one model. Sessions share nothing and may run on different threads; one session is used by one thread at a
time. Inline functions are shown by their prototype. [ORT's training API beside this one](ort-api.md) lists the
counterparts of ONNX Runtime's functions.

"""
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BEGIN, _END = 'extern "C" {\n#endif\n', "#ifdef __cplusplus\n}"


def c_api_page(root: Path) -> str:
    """Markdown for the header of the checkout at `root`."""
    header = (root / "kernels/include/minbuild/trainer.h").read_text("utf-8")
    opening = _COMMENT.search(header)
    assert opening is not None, "the header begins with a comment"
    body = header[header.index(_BEGIN) + len(_BEGIN) : header.rindex(_END)]
    parts = [_HEAD, _prose(opening[0]), "\n"]
    for block in re.split(r"\n\s*\n", body):
        parts += _block(block.strip("\n"))
    return "".join(parts)


def _block(block: str) -> list[str]:
    """A paragraph of the header: comments in column 0 become prose, what follows them code."""
    parts: list[str] = []
    pending: list[str] = []
    comment = ""
    for line in _logical_lines(block):
        if line.startswith("/*"):
            parts += _flush(pending)
            comment = line
            parts.append("\n" + _prose(comment))
        elif not line.startswith("#"):
            pending.append(line)
    return parts + _flush(pending)


def _flush(lines: list[str]) -> list[str]:
    if not lines:
        return []
    text = _without_bodies("\n".join(lines))
    lines.clear()
    text = re.sub(r"^(MB_API|static inline) ", "", text, flags=re.MULTILINE)
    return [f"\n```c\n{text}\n```\n"] if text.strip() else []


def _logical_lines(block: str) -> list[str]:
    """The lines, but a comment that begins in column 0 is one, to its end."""
    found: list[str] = []
    open_comment = False
    for line in block.split("\n"):
        if open_comment:
            found[-1] += "\n" + line
        else:
            found.append(line)
            open_comment = line.startswith("/*")
        open_comment = open_comment and "*/" not in line
    return found


def _without_bodies(text: str) -> str:
    """Inline functions end with their prototype."""
    found: list[str] = []
    inside = False
    for line in text.split("\n"):
        if inside:
            inside = line != "}"
            continue
        if line.startswith("static inline") or (
            found and found[-1].startswith("static inline") and ";" not in found[-1]
        ):
            line, brace, rest = line.partition(" {")
            if brace:
                line += ";"
                inside = not rest.rstrip().endswith("}")
        found.append(line)
    return "\n".join(found)


def _prose(comment: str) -> str:
    text = comment.strip().removeprefix("/*").removesuffix("*/")
    lines = [re.sub(r"^ \* ?", "", line).strip() for line in text.split("\n")]
    return "\n".join(lines).strip().replace("<", "&lt;") + "\n"
