"""Any number of random loops, built and compared with the interpreter in double precision, as tests/passes do with a
few.

    python tests/slow/random_loops.py [--count 1000] [--first 0]

Prints the number of each model that differs or is refused, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

import trainers  # noqa: E402
from planned_models import compiled  # noqa: E402
from random_loops import LONGEST, REGISTRY, compared, random_loops  # noqa: E402

from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402

AT_ONCE = 100  # models of one library


def wrong(seeds: range) -> list[int]:
    """Those of `seeds` whose model differs from its graph or is refused; each is printed with the reason."""
    found, built = [], []
    for seed in seeds:
        made, rounds = random_loops(seed)
        try:
            built.append((seed, made, rounds, compiled(made, REGISTRY, **({} if rounds else {"T": LONGEST}))))
        except MinbuildError as error:
            print(f"{seed}: {error}")
            found.append(seed)
    with tempfile.TemporaryDirectory() as folder:
        library = trainers.library_of(contents_of([m for *_, m in built]), REGISTRY, Path(folder))
        for seed, made, rounds, model in built:
            try:
                compared(made, rounds, model, library)
            except AssertionError as error:
                print(f"{seed}: {error}")
                found.append(seed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    found, end = 0, options.first + options.count
    for first in range(options.first, end, AT_ONCE):
        found += len(wrong(range(first, min(first + AT_ONCE, end))))
        print(f"{min(first + AT_ONCE, end) - options.first} models, {found} wrong", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
