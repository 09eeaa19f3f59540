"""docs/reference/errors.md: exit codes of the command, status codes of the C API, and error codes of the device."""

from __future__ import annotations

import inspect

from minbuild import errors
from minbuild.analysis.error_codes import cure, device_errors, statuses
from minbuild.docgen.markdown import cell, code, table

_HEAD = """# Errors and exit codes

An error message names the place, the cause and a cure. The exit code of the command says which kind of failure it
was, so that scripts and build systems need not read text.

"""
_STATUS = """
## Status codes of the C API

Every function of [`trainer.h`](c-api.md) that can fail returns one of these. `minbuild explain 6` prints a row of
this table.

"""
_DEVICE = """
## Error codes of the device

A library built with `--error-messages codes` stores a code such as `E9 3 Conv` in place of a sentence.
`minbuild explain "E9 3 Conv"` restores it: the number selects a row, the words after it fill the places marked `…`.

"""


def errors_page() -> str:
    """Markdown: the three tables."""
    status_rows = [
        [str(number), code(name), cell(meaning), cell(cure(name))]
        for number, (name, meaning) in sorted(statuses().items())
    ]
    device_rows = [
        [code(f"E{number}"), code(failure.status), cell(failure.text.replace("%s", "…").replace("%d", "…"))]
        for number, failure in enumerate(device_errors())
    ]
    return "".join(
        (
            _HEAD,
            table(["exit code", "meaning"], _exit_codes(), "r"),
            _STATUS,
            table(["status", "name", "meaning", "cure"], status_rows, "r"),
            _DEVICE,
            table(["code", "status", "sentence"], device_rows),
        )
    )


def _exit_codes() -> list[list[str]]:
    """Rows from the error classes, between success and interruption."""
    rows = {
        0: "Success.",
        1: "Internal error: a defect of minbuild. `--verbose` prints the traceback; please report it.",
    }
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.MinbuildError) and kind is not errors.MinbuildError:
            rows[kind.exit_code] = " ".join((kind.__doc__ or "").split())
    rows[130] = "Interrupted by Ctrl-C."
    return [[str(number), cell(text)] for number, text in sorted(rows.items())]
