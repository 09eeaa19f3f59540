"""Work of planning over the number of nodes: executed lines are counted, which no other load of the machine changes."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from minbuild.planning.compile import compile_model

SLOW = Path(__file__).resolve().parents[1] / "slow"
FEW, MANY = 120, 480  # forward nodes at most: where there are fewer, layouts of the arena are searched for
SLACK = 1.2  # of the lines per node


@pytest.mark.parametrize("shape", ("mlp", "residual", "convolution", "transformer"))
def test_planning_is_linear_in_the_nodes(shape: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(SLOW))
    from deep_chains import chain
    from measure_planning import write_artifacts

    counts = {}
    for most in (FEW, MANY):
        folder = tmp_path / str(most)
        folder.mkdir()
        write_artifacts(shape, most, folder)
        compile_model(folder, {}, {})  # what is done once for a process
        nodes = len(chain(shape, most).graph.node)
        counts[most] = _lines(folder) / nodes
    assert counts[FEW] > 1_000, "nothing was counted"
    assert counts[MANY] <= SLACK * counts[FEW]


def _lines(folder: Path) -> int:
    """The number of lines that planning the model in `folder` executes; turns of a loop on one line count as lines."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        compile_model(folder, {}, {})
    finally:
        sys.settrace(before)
    return count
