"""The table of ONNX Runtime's training functions says the truth about ours."""

from __future__ import annotations

import functools

import pytest

from minbuild import assets
from minbuild.compat.ort_api_map import ROWS, declared
from minbuild.planning.library_contents import COMPONENTS
from minbuild.training import api

pytestmark = pytest.mark.unit

HEADER = (assets.root("kernels") / "include/minbuild/trainer.h").read_text("utf-8")


def test_every_function_has_an_answer_that_exists():
    assert len(ROWS) == len({row.ort for row in ROWS}) == 33  # members of OrtTrainingApi 1.19.2
    there = set(declared(HEADER))
    assert len(there) > 35
    for row in ROWS:
        assert row.c and set(row.c) <= there, row.ort
        assert not row.component or row.component in COMPONENTS
        if row.python:
            functools.reduce(getattr, row.python.split("."), api)


def test_parts_are_marked_where_they_are_needed():
    """By the sources that define the functions, and what the header's own functions call."""
    runtime = assets.root("kernels") / "runtime"
    for part, (source, _) in COMPONENTS.items():
        text = (runtime / source).read_text("utf-8")
        exported = {name for name in declared(HEADER) if f"mb_status {name}(" in text}
        assert exported
        for row in ROWS:
            if exported & set(row.c):
                assert row.component == part, row.ort
