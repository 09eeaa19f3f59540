"""Work of planning over the number of nodes: executed lines are counted, which no other load of the machine changes."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from minbuild.planning.compile import compile_model

SLOW = Path(__file__).resolve().parents[1] / "slow"
FEW, MANY = 60, 240  # forward nodes
SLACK = 1.2  # of the lines per node


def test_planning_is_linear_in_the_nodes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(SLOW))
    from measure_planning import write_artifacts

    counts = {}
    for nodes in (FEW, MANY):
        folder = tmp_path / str(nodes)
        folder.mkdir()
        write_artifacts("residual", nodes, folder)
        compile_model(folder, {}, {})  # what is done once for a process
        counts[nodes] = _lines(folder)
    assert counts[FEW] > 1_000 * FEW, "nothing was counted"
    assert counts[MANY] / MANY <= SLACK * counts[FEW] / FEW


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
