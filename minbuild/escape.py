"""Text from models is data: no name of a tensor, node, dimension or file reaches a terminal or a page as markup."""

from __future__ import annotations

import json
import re


def printable(text: str | bytes) -> str:
    """The text in one line, with every control, format or otherwise invisible character as a backslash escape: no line
    breaks, no escape sequences of terminals, no bidirectional overrides."""
    if isinstance(text, bytes):  # protobuf gives bytes for what is not UTF-8
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for each line of a text of several."""
    return "\n".join(printable(line) for line in text.split("\n"))


def for_markdown(text: str) -> str:
    """The text with everything that Markdown or HTML reads as markup escaped; for prose and cells, not for code."""
    safe = (
        printable(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
    for character in "|*_`[]~":
        safe = safe.replace(character, "\\" + character)
    return safe


def for_json(text: str) -> str:
    """JSON text with every invisible character as a JSON escape, for terminals that it is printed to."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def as_code(text: str) -> str:
    """A code span of Markdown, also for a cell of a table: the fence is longer than any run of backticks in it."""
    shown = printable(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    blank = " " if len(fence) > 1 else ""
    return f"{fence}{blank}{shown}{blank}{fence}"


def in_comment(text: str) -> str:
    """Text for a comment of C: nothing in it ends the comment, begins another, or joins lines."""
    shown = printable(text).replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")
    return re.sub(r"\?(?=\?)", "? ", shown)


def c_literal(text: str) -> str:
    """A string literal of C: everything but printable ASCII as an octal escape, which ends after three digits."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{plain}"'
