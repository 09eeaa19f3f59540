"""What needs patience: saving survives being killed at any moment, and memory does not grow.

pytest tests/slow/test_endurance.py
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(ROOT)]

from case_sets import (  # noqa: E402
    EVAL,
    GOLDEN,
    TRAIN,
    Library,
    emit_sources,
    load,
    registry,
    trainer,
)
from shared_library import shared_library  # noqa: E402

from minbuild.codegen.sources import COMPONENTS  # noqa: E402
from minbuild.frontend.checkpoint import read_checkpoint  # noqa: E402
from minbuild.training.library import Session  # noqa: E402

KILLS, STEPS, SETTLED = 60, 10_000, 1_000
GROWTH = 128 * 1024  # bytes that the interpreter itself may take meanwhile

# Saves over and over, one step later each time. Says so before the first.
_SAVER = """
import sys
sys.path[:0] = sys.argv[4:]
from pathlib import Path
from case_sets import GOLDEN, TRAIN, load, trainer
from minbuild.training.library import Session
from minbuild.training.state import CheckpointState
how, name, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
case, built = load(GOLDEN / name), trainer(GOLDEN / name)
start = out.read_bytes() if out.exists() else case.checkpoint
session = Session(built.library, built.data, start)
state = CheckpointState.load_checkpoint_from_buffer(start)
print("ready", flush=True)
while True:
    if how == "device":
        session.run(TRAIN, case.batch(0))
        session.optimizer_step()
        session.save(out, True)
    else:
        state.properties["count"] = 1 + state.properties["count"] if "count" in state.properties else 1
        CheckpointState.save_checkpoint(state, out, True)
"""


@pytest.mark.parametrize("how", ["device", "python"])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(how, tmp_path):
    out, chance, reached = tmp_path / "checkpoint", random.Random(0), 0
    trainer(GOLDEN / "dense")  # so that the children find it built
    for _ in range(KILLS):
        command = [sys.executable, "-c", _SAVER, how, "dense", str(out), str(TESTS / "support"), str(ROOT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.02))
            child.kill()
        if not out.exists():
            continue
        found = read_checkpoint(out)  # raises for damage
        assert {p.name for p in found.parameters} == load(GOLDEN / "dense").parameters
        now = found.groups[0].step if how == "device" else int(found.properties["count"])
        assert now >= reached, "an older state than one seen before"
        reached = now
    assert reached > KILLS
    left = {p.name for p in tmp_path.iterdir()}
    assert len(left) <= KILLS + 1 and "checkpoint" in left


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
def test_memory_does_not_grow(tmp_path):
    case, built = load(GOLDEN / "mse"), trainer(GOLDEN / "mse")
    contents = replace(built.contents, components=frozenset(COMPONENTS))
    path = tmp_path / "all.so"
    path.write_bytes(shared_library(emit_sources(contents, registry())))
    session = Session(Library(path), built.data, case.checkpoint)
    settled = 0
    for step in range(STEPS):
        session.run(TRAIN, case.batch(step))
        session.optimizer_step()
        session.lazy_reset_grad()
        if step % 10 == 0:
            session.run(EVAL, case.eval_batch())
            session.set_property(f"p{step % 7}", "x" * (step % 90))
            session.fill(session.buffer(True), True)
            session.load(session.checkpoint(True))
        if step % 100 == 0:
            session.save(tmp_path / "saved", True)
        if step == SETTLED:
            settled = _resident()
    assert session.step_count == STEPS
    assert _resident() - settled < GROWTH
