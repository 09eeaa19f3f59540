"""Feeds damaged plans and checkpoints to the trainers of all golden sets for as long as you like.

    python tests/slow/fuzz_device.py [--seconds 600] [--first 0] [--sanitize] [NAME...]

Every crash is printed with the number of its mutation, which `python tests/support/hostile.py FOLDER NUMBER 1`
repeats; the folders stay. With --sanitize the libraries are built by g++ with the address and
undefined-behaviour sanitizers. Ends with 1 if there was a crash.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent), str(TESTS / "slow")]

import hostile  # noqa: E402
import sanitizers  # noqa: E402
from case_sets import GOLDEN, SHARED, load, trainer  # noqa: E402

CHUNK = 2000


def main() -> int:
    options = _options()
    names = options.names or sorted(p.parent.name for p in GOLDEN.glob("*/meta.json"))
    place = Path(tempfile.mkdtemp(prefix="minbuild-fuzz-"))
    victims = {name: _prepared(name, place, options.sanitize) for name in names}
    until, first, crashes = time.monotonic() + options.seconds, options.first, 0
    while time.monotonic() < until:
        for name, folder in victims.items():
            crashes += _chunk(name, folder, first, options.sanitize)
        first += CHUNK
        print(
            f"{first - options.first} mutations of each of {len(victims)} sets, {crashes} crashes", flush=True
        )
    return 1 if crashes else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=100_000, help="number of the first mutation")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _prepared(name: str, place: Path, sanitize: bool) -> Path:
    source = GOLDEN / name if (GOLDEN / name).is_dir() else SHARED / name
    case, built = load(source), trainer(source)
    library = sanitizers.shared_library(built, place / f"{name}.so") if sanitize else built.path.read_bytes()
    if isinstance(library, bytes):
        (place / f"{name}.so").write_bytes(library)
    return hostile.prepare(
        place / name, place / f"{name}.so", built.data, case.checkpoint, case.batch(0), case.eval_batch()
    )


def _chunk(name: str, folder: Path, first: int, sanitize: bool) -> int:
    """Mutations `first` to `first + CHUNK`, going on behind each crash. The number of crashes."""
    crashes, end = 0, first + CHUNK
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS / "support")))}
    if sanitize:
        environment |= sanitizers.preload()
    while first < end:
        command = [
            sys.executable,
            str(TESTS / "support/hostile.py"),
            str(folder),
            str(first),
            str(end - first),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=900, check=False
            )
            code, out, error = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, out, error = "timeout", (late.stdout or b"").decode(), ""
        if code == 0:
            return crashes
        if not out.split():
            sys.exit(f"{name}: the undamaged trainer does not run: {error[-1500:]}")
        last = out.split()[-1]
        print(f"{name}: exit {code} at {folder} {last}\n{error[-1500:]}", flush=True)
        crashes, first = crashes + 1, int(last) + 1
    return crashes


if __name__ == "__main__":
    sys.exit(main())
