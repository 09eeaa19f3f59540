"""Kills the training again and again, at any time and without warning, until it is through. Its checkpoint must then be
that of a training that nobody disturbed, byte for byte."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

KILLS = 40  # at least, so that many of them meet a save

random.seed(3)
started = time.monotonic()
calm = subprocess.run(("./train", "dist", "calm.checkpoint"), check=True, capture_output=True, text=True)
print(calm.stdout, end="")
whole = time.monotonic() - started  # seconds of the whole training on this machine

path = Path("cut.checkpoint")
path.unlink(missing_ok=True)
kills, torn, steps = 0, 0, []
while True:
    process = subprocess.Popen(("./train", "dist", path), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("from step "), "it does not start from what the last kill left"
    steps.append(int(first.split()[2]))
    if kills < KILLS or steps[-1] == 0:
        time.sleep(random.uniform(0, whole / KILLS))
        if process.poll() is None:
            process.kill()  # SIGKILL: nothing of the program runs after it
            kills += 1
    code = process.wait()
    process.stdout.close()
    torn += any(Path().glob(f"{path}.new?"))
    if code == 0:
        break
    assert code == -9, f"ended with {code}"

assert steps == sorted(steps), "a step was lost that had been saved"
assert path.read_bytes() == Path("calm.checkpoint").read_bytes(), "the checkpoints differ"
assert torn > 0, "no kill met a save; raise KILLS"
print(f"killed {kills} times, {torn} of them in the middle of a save")
print("the same bytes as without")
