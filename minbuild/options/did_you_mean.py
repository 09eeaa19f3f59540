"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from minbuild.escape import printable

_SHOWN = 20


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """` Did you mean ...?` where something there is like `name`, else nothing."""
    found = get_close_matches(name, list(there), 1, 0.6)
    return f" Did you mean {printable(found[0])}?" if found else ""


def listed(names: Iterable[str]) -> str:
    """Names with commas between, the first ones of many."""
    all_names = [printable(name) for name in names]
    rest = len(all_names) - _SHOWN
    return ", ".join(all_names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
