"""ONNX's own node tests on the full build: each passes, or is refused for the recorded reason."""

from __future__ import annotations

import json

import onnx
import pytest
from onnx_nodes import RECORD, node_tests, outcome

RECORDED = json.loads(RECORD.read_text("utf-8"))
same_onnx = pytest.mark.skipif(
    onnx.__version__ != RECORDED["onnx"], reason=f"the record is of onnx {RECORDED['onnx']}"
)


def _names() -> list[str]:
    """From the record where it is of the installed onnx: listing onnx's own tests computes all of them."""
    if onnx.__version__ == RECORDED["onnx"]:
        return sorted((*RECORDED["passed"], *RECORDED["refused"]))
    return sorted(node_tests())


@pytest.mark.parametrize("name", _names())
def test_node(name):
    found = outcome(node_tests()[name])
    if onnx.__version__ == RECORDED["onnx"]:
        assert found == RECORDED["refused"].get(name, ""), (
            "run tests/slow/record_onnx_nodes.py if this is meant"
        )


@same_onnx
def test_record_is_of_these_tests():
    assert {*RECORDED["passed"], *RECORDED["refused"]} == set(node_tests())
