"""Text from models is data: no name of a tensor, node, dimension or file reaches a terminal or a page as markup."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text in one line, with every control, format or otherwise invisible character as a backslash escape: no line
    breaks, no escape sequences of terminals, no bidirectional overrides."""
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
