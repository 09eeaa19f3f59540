"""Any number of random models, built and compared with the interpreter in double precision, as tests/passes do with a
few.

    python tests/slow/random_models.py {layers,loops,nets} [--count 1000] [--first 0] [--ram 0.75] [--threads 2]
        [--vectors wide]

With --ram, plans are made for that part of the RAM that they take without a budget; --vectors says which the library
has: AVX2 and what every processor has (wide), AVX-512 as well (wider), or the latter alone (narrow). Prints the number
of each model that differs or is refused for another reason than its budget, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

import random_layers  # noqa: E402
import random_loops  # noqa: E402
import random_nets  # noqa: E402
import trainers  # noqa: E402
from planned_models import compiled, within  # noqa: E402

from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.ir import TrainingArtifacts  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.training.library import TrainerError  # noqa: E402

AT_ONCE = 100  # models of one library
REGISTRY = random_loops.REGISTRY
VECTORS: dict[str, dict[str, bool]] = {"wide": {}, "wider": {"avx512": True}, "narrow": {"one_variant": True}}


@dataclass(frozen=True, slots=True)
class Kind:
    """How models of a kind are made, the largest of the sizes that are free in one, and how one is compared."""

    make: Callable[[int], tuple[TrainingArtifacts, Any]]
    largest: Callable[[Any], dict[str, int]]
    compared: Callable[..., None]


KINDS = {
    "layers": Kind(random_layers.random_layer, lambda layer: layer.largest, random_layers.compared),
    "loops": Kind(
        random_loops.random_loops,
        lambda rounds: {"T": random_loops.LONGEST} if rounds is None else {},
        random_loops.compared,
    ),
    "nets": Kind(random_nets.random_net, lambda _: {"N": random_nets.LARGEST}, random_nets.compared),
}


def wrong(
    kind: Kind, seeds: range, options: PlanOptions, part: float | None, vectors: Mapping[str, bool]
) -> tuple[int, list[int]]:
    """How many of `seeds` were compared, and those whose model differs from its graph or is refused; each is printed
    with the reason."""
    found, built = [], []
    for seed in seeds:
        made, detail = kind.make(seed)
        largest = kind.largest(detail)
        try:
            model = (
                within(part, made, REGISTRY, options, **largest)
                if part
                else compiled(made, REGISTRY, options, **largest)
            )
        except MinbuildError as error:
            print(f"{seed}: {error}")
            found.append(seed)
            continue
        if model is not None:
            built.append((seed, made, detail, model))
    with tempfile.TemporaryDirectory() as folder:
        contents = replace(contents_of([m for *_, m in built]), **vectors)
        library = trainers.library_of(contents, REGISTRY, Path(folder))
        for seed, made, detail, model in built:
            try:
                kind.compared(made, detail, model, library)
            except (AssertionError, TrainerError) as error:
                print(f"{seed}: {error}")
                found.append(seed)
    return len(built), found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ram", type=float)
    parser.add_argument("--threads", default="off")
    parser.add_argument("--vectors", choices=VECTORS, default="wide")
    given = parser.parse_args()
    options, vectors = PlanOptions(threads=given.threads), VECTORS[given.vectors]
    compared = failed = 0
    for first in range(given.first, given.first + given.count, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, given.first + given.count))
        count, found = wrong(KINDS[given.kind], seeds, options, given.ram, vectors)
        compared, failed = compared + count, failed + len(found)
        print(f"{seeds.stop - given.first} models, {compared} compared, {failed} wrong", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
