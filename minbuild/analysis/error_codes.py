"""The meaning of the C API's status codes, and the words of errors that are codes: read from the device's own
sources, with what to do about each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from minbuild import assets
from minbuild.errors import BadInput

_STATUS = re.compile(r"^\s*(MB_\w+) = (\d+),?\s*(?:/\* ([^*]*?) \*/)?$", re.MULTILINE)
_FAILURE = re.compile(r'^MB_FAILURE\((\w+), (MB_\w+), "(.*)"\)$', re.MULTILINE)
_CODE = re.compile(r"E(\d+)(?: (.*))?", re.DOTALL)
_NAMED = re.compile(r"%[sd]")  # what a text has a place for
_CURES: Mapping[str, str] = {
    "MB_OK": "Nothing to do.",
    "MB_INVALID_ARGUMENT": "Compare what is passed with the counts and names that mb_input, mb_output and the "
    "parameter functions give.",
    "MB_BAD_PLAN": "Ship the plan and the library of one package; `minbuild check` says whether they fit.",
    "MB_MISSING_KERNEL": "Reduce both models together, or build the library again for this one; `minbuild check` "
    "lists what is missing.",
    "MB_BAD_CHECKPOINT": "Use a checkpoint of this very model, whole and unchanged.",
    "MB_OUT_OF_MEMORY": "Give more arena (mb_arena_size says how much), or smaller batches; "
    "--max-dim sets the default.",
    "MB_BAD_SHAPE": "mb_last_error names the input and what was expected there.",
    "MB_BAD_VALUE": "mb_last_error names the kernel: look at the labels and indices of this batch, or at the loss; or "
    "what is not finite: reset the gradients, and look at the batch and the learning rate.",
    "MB_IO": "Check the path, the space left and the permissions.",
    "MB_UNSUPPORTED": "Reduce again with what is needed: an evaluation or optimizer model, --graphs, "
    "--checkpoint-writing on, or --with. A library reduced with --updates fused trains with mb_train_and_update alone.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that can go wrong on a device: its name there, its status, and its text with `%s` and `%d`; `otherwise`
    is its text in libraries of the other kind (a compiled plan, fused updates), "" where it is the same."""

    name: str
    status: str
    text: str
    otherwise: str = ""

    def words(self, named: str) -> str:
        """The text with the names of a code, which are separated by blanks and may hold blanks themselves. Where a code
        was cut off, the places stay empty."""
        kinds = _NAMED.findall(self.text)
        if self.otherwise and kinds and not named:
            return self.otherwise
        pattern = " ".join({"%s": "(.*)", "%d": r"(\d+)"}[kind] for kind in kinds)
        # A library without messages has no names of kernels, and who copied the code may have lost the blank before.
        found = re.fullmatch(pattern, named, re.DOTALL) or re.fullmatch(pattern, f"{named} ", re.DOTALL)
        values = iter(found.groups() if found else ("",) * len(kinds))
        return _NAMED.sub(lambda _: next(values) or "…", self.text)


@cache
def statuses() -> Mapping[int, tuple[str, str]]:
    """Code -> name and meaning, from trainer.h."""
    text = (assets.root("kernels") / "include/minbuild/trainer.h").read_text("utf-8")
    block = text[text.index("MB_OK") - 10 : text.index("Element types")]
    return {
        int(code): (name, " ".join(what.split()) or "success") for name, code, what in _STATUS.findall(block)
    }


def cure(name: str) -> str:
    """The remedy for a status, by its name."""
    return _CURES[name]


@cache
def device_errors() -> tuple[Failure, ...]:
    """The errors by number, from the device's own list."""
    text = (assets.root("kernels") / "runtime/errors.inc").read_text("utf-8")
    found: dict[str, Failure] = {}
    for name, status, words in _FAILURE.findall(text):
        found[name] = replace(found[name], otherwise=words) if name in found else Failure(name, status, words)
    return tuple(found.values())


def explain(code: str) -> str:
    """One paragraph about a status, given as its number or its name, or about an error of a library without messages,
    such as "E7 input 3 1". Raises BadInput for one there is not."""
    said = _CODE.fullmatch(code.strip())
    if said:
        return f"{words(code)}. {_about(_failure(said[1]).status)}"
    known = statuses()
    found = next((name for n, (name, _) in known.items() if code in (str(n), name)), None)
    if found is None:
        listed = ", ".join(f"{n} {name}" for n, (name, _) in known.items())
        raise BadInput(
            f"{code}: no such status. There are {listed}; and errors from E0 to E{len(device_errors()) - 1}."
        )
    return _about(found)


def words(code: str) -> str:
    """The message that a library with texts has for `code`. Raises BadInput."""
    said = _CODE.fullmatch(code.strip())
    if said is None:
        raise BadInput(f"{code}: is no error of a library without messages. Those begin with E and a number.")
    return _failure(said[1]).words(said[2] or "")


def _failure(number: str) -> Failure:
    if int(number) >= len(device_errors()):
        listed = ", ".join(f"E{n} {failure.text}" for n, failure in enumerate(device_errors()))
        raise BadInput(f"E{number}: no such error. There are: {listed}.")
    return device_errors()[int(number)]


def _about(name: str) -> str:
    number, what = next((n, what) for n, (known, what) in statuses().items() if known == name)
    return f"{number} {name}: {what}. {_CURES[name]}"
