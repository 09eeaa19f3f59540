"""Keeps what this release wrote: a plan, checkpoints of two training steps, and what they go on to.

    python tests/compatibility/record.py

writes the folder of the version in `minbuild/__init__.py`, before that is released. Folders of earlier releases stay as
they are: `tests/runtime/test_compatibility.py` reads every one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

from case_sets import GOLDEN, TRAIN, load, trainer  # noqa: E402

from minbuild import __version__  # noqa: E402

NAMES = ("dense", "residual")
RATE = 0.01


def main() -> None:
    for name in NAMES:
        case, built, folder = load(GOLDEN / name), trainer(GOLDEN / name), HERE / __version__ / name
        session, losses = built.session(case.checkpoint), []
        session.learning_rate = RATE
        folder.mkdir(parents=True, exist_ok=True)
        for step in range(3):
            if step == 2:
                session.save(folder / "checkpoint", include_optimizer=True)
                session.save(folder / "parameters", include_optimizer=False)
            session.lazy_reset_grad()
            losses.append(float(session.run(TRAIN, case.batch(step))[0]))
            session.optimizer_step()
        (folder / "trainer.plan").write_bytes(built.data)
        (folder / "losses.json").write_text(json.dumps(losses) + "\n")
        print(folder)


if __name__ == "__main__":
    main()
