"""Exit codes are part of the interface, and the README lists those that exist."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from minbuild import errors

pytestmark = pytest.mark.unit


def test_exit_codes_match_the_documentation() -> None:
    kinds = {
        v.exit_code
        for v in vars(errors).values()
        if isinstance(v, type) and issubclass(v, errors.MinbuildError)
    }
    table = (ROOT / "docs/reference/errors.md").read_text("utf-8").split("\n## ")[0]
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == kinds | {0, 1, 130}


def test_unsupported_keeps_every_finding() -> None:
    error = errors.Unsupported(["first", "second"])
    assert error.findings == ("first", "second")
    assert str(error) == "first\nsecond"
