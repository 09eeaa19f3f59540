"""What the status codes of the C API mean: read from its header, with what to do about each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from minbuild import assets
from minbuild.errors import BadInput

_STATUS = re.compile(r"^\s*(MB_\w+) = (\d+),?\s*(?:/\* (.*?) \*/)?$", re.MULTILINE)
_CURES: Mapping[str, str] = {
    "MB_OK": "Nothing to do.",
    "MB_INVALID_ARGUMENT": "Compare what is passed with the counts and names that mb_input, mb_output and the "
    "parameter functions give.",
    "MB_BAD_PLAN": "Ship the plan and the library of one package; `minbuild check` says whether they fit.",
    "MB_MISSING_KERNEL": "Reduce both models together, or build the library again for this one; `minbuild check` "
    "lists what is missing.",
    "MB_BAD_CHECKPOINT": "Use a checkpoint of this very model, whole and unchanged.",
    "MB_OUT_OF_MEMORY": "Give more arena (mb_arena_size says how much), or smaller batches; --max sets the default.",
    "MB_BAD_SHAPE": "mb_last_error names the input and what was expected there.",
    "MB_BAD_VALUE": "mb_last_error names the kernel: look at the labels and indices of this batch, or at the loss.",
    "MB_IO": "Check the path, the space left and the permissions.",
    "MB_UNSUPPORTED": "Reduce again with what is needed: an evaluation or optimizer model, or --with.",
}


@cache
def statuses() -> Mapping[int, tuple[str, str]]:
    """Code -> name and meaning, from trainer.h."""
    text = (assets.root("kernels") / "include/minbuild/trainer.h").read_text("utf-8")
    block = text[text.index("MB_OK") - 10 : text.index("Element types")]
    return {int(code): (name, what or "success") for name, code, what in _STATUS.findall(block)}


def explain(code: str) -> str:
    """One paragraph about a status, given as its number or its name. Raises BadInput for one there is not."""
    known = statuses()
    number = next((n for n, (name, _) in known.items() if code in (str(n), name)), None)
    if number is None:
        listed = ", ".join(f"{n} {name}" for n, (name, _) in known.items())
        raise BadInput(f"{code}: no such status. There are {listed}.")
    name, what = known[number]
    return f"{number} {name}: {what}. {_CURES[name]}"
