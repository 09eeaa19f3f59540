"""`--integration micropython`, built into MicroPython itself: a program of this machine, and firmware of a Cortex-M3 in
an emulator. Needs MicroPython's sources, 1.20 or newer (`apt-get source micropython` has them), make, gcc,
arm-none-eabi-gcc and qemu-system-arm:

    MICROPYTHON_DIR=micropython-1.25.0 pytest tests/slow/test_micropython.py
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from places import GOLDEN
from programs import run, tool
from quiet_progress import Quiet
from sample_losses import expected_losses

from minbuild.options.build_options import BuildOptions
from minbuild.pipeline import Request, reduce

STEPS = 12
SMALL = ("MICROPY_PY_SSL=0", "MICROPY_PY_BTREE=0", "MICROPY_PY_FFI=0", "MICROPY_PY_BLUETOOTH=0")
MACHINE = ("-machine", "mps2-an385", "-nographic", "-monitor", "null", "-semihosting", "-serial", "stdio")
PROGRAM = """
from array import array
import minbuild
session = minbuild.TrainingSession([4])
x = array("f", [0.25 * (i % 7) for i in range(4 * WIDTH)])
labels = array("q", [0, 1, 2, 1])
first = session.train_step([x, labels])[0]
for _ in range(30):
    loss = session.train_step([x, labels])[0]
    session.optimizer_step()
    session.lazy_reset_grad()
assert loss < first, (first, loss)
assert session.step_count() == 30
assert session.learning_rate() > 0 and abs(session.learning_rate(0.5) - 0.5) < 1e-6
evaluated = session.eval_step([x, labels])[0]
names = session.parameter_names()
values = list(session.parameter(names[0]))
pieces = []
session.save_checkpoint(pieces.append)
saved = b"".join(pieces)
session.train_step([x, labels])
session.optimizer_step()
assert list(session.parameter(names[0])) != values
session.load_checkpoint(saved)
assert list(session.parameter(names[0])) == values
assert session.eval_step([x, bytes(labels)])[0] == evaluated  # bytes are of any type
session.load_checkpoint(memoryview(b"..." + saved)[3:])

def refused(kind, text, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

def full(piece):
    raise OSError(5)

refused(TypeError, "has elements 'd', the model takes 'f'", session.train_step, [array("d", x), labels])
refused(ValueError, "1 inputs were given, the model takes 2", session.train_step, [x])
refused(ValueError, "bytes, not those of its sizes", session.train_step, [array("f", [1.0]), labels])
refused(ValueError, "", session.train_step, [x, array("q", [0, 1, 99, 1])])
refused(MemoryError, "", session.train_step, [array("f", 400 * WIDTH * [0.0]), array("q", 400 * [0])])
refused(ValueError, "", session.load_checkpoint, saved[:-9])
refused(ValueError, "", session.load_checkpoint, b"")
refused(OSError, "5", session.save_checkpoint, full)
refused(OSError, "28", session.save_checkpoint, lambda piece: 0)
refused(KeyError, "nothing", session.parameter, "nothing")
refused(ValueError, "free sizes", minbuild.TrainingSession, [1, 2, 3])
refused(ValueError, "", session.learning_rate, float("nan"))
assert session.eval_step([x, labels])[0] == evaluated  # a refused call changes nothing
print("passed")
"""


@pytest.fixture(scope="module")
def micropython() -> Path:
    folder = os.environ.get("MICROPYTHON_DIR", "")
    if not (Path(folder) / "py/py.mk").is_file():
        pytest.skip("MICROPYTHON_DIR is not a folder of MicroPython's sources")
    run(tool("make"), "-j2", "-C", "mpy-cross", cwd=Path(folder).resolve())
    return Path(folder).resolve()


@pytest.fixture(
    scope="module",
    params=[BuildOptions(), BuildOptions(flavor="compiled", initial_checkpoint="compact")],
    ids=["interpreted", "compiled"],
)
def dist(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("micropython") / "dist"
    names = ("arduino", "micropython")
    reduce(
        Request((GOLDEN / "dense",), folder, analysis=False, build_options=request.param, integrations=names),
        Quiet(),
    )
    return folder


def make(micropython: Path, port: str, dist: Path, build: Path, *variables: str, flags: str = "") -> None:
    """Build a port of MicroPython with the package's module, and without the modules of other projects."""
    done = subprocess.run(
        [
            "make",
            "-j2",
            "-C",
            str(micropython / "ports" / port),
            f"BUILD={build}",
            f"USER_C_MODULES={dist / 'integrations/micropython'}",
            f"MPY_LIB_DIR={micropython}",
            *variables,
        ],
        env={**os.environ, "CXXFLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_program_of_this_machine_trains(micropython: Path, dist: Path, tmp_path: Path) -> None:
    make(micropython, "unix", dist, tmp_path / "build", *SMALL, "FROZEN_MANIFEST=")
    interpreter = tmp_path / "build/micropython"
    printed = run(interpreter, dist / "integrations/micropython/train.py", cwd=tmp_path)
    losses = [float(line) for line in printed.split()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)
    train = (dist / "integrations/micropython/train.py").read_text()
    width = int(train.split("train_step([(input_0, (")[1].split(",")[1])
    (tmp_path / "all.py").write_text(PROGRAM.replace("WIDTH", str(width)))
    assert run(interpreter, "all.py", cwd=tmp_path).endswith("passed\n")


def test_firmware_of_a_board_trains(micropython: Path, dist: Path, tmp_path: Path) -> None:
    """The program is frozen into the firmware and imported at the prompt."""
    tool("arm-none-eabi-gcc")
    manifest = tmp_path / "manifest.py"
    manifest.write_text(f'freeze("{dist / "integrations/micropython"}", "train.py")\n')
    heap = "MICROPY_HEAP_SIZE=300000"
    flags = "-mthumb -mcpu=cortex-m3 -Os"
    make(micropython, "qemu", dist, tmp_path / "build", f"FROZEN_MANIFEST={manifest}", heap, flags=flags)
    kernel = ("-kernel", str(tmp_path / "build/firmware.elf"))
    board = subprocess.Popen(
        [tool("qemu-system-arm"), *MACHINE, *kernel],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert board.stdin and board.stdout
        time.sleep(1)
        board.stdin.write("import train\r\nprint('the end')\r\n")
        board.stdin.flush()
        lines: list[str] = []
        while not lines or not lines[-1].startswith("the end"):
            lines.append(board.stdout.readline())
            assert lines[-1], "".join(lines)
    finally:
        board.kill()
        board.wait()
    losses = [float(line) for line in lines if line[0].isdigit()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)
