"""Bytes that threads take of a library on every target that has them: reports/baseline/fork_join.md.

    python tests/slow/measure_fork_join.py [--artifacts FOLDER]

The artifacts, by default those of the README, become a library without threads and one with, and the size report
attributes the bytes of `kernels/runtime/threads.cc`: the fork and join itself, and the division of kernels' calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from measure_threads import THREADS, bytes_of_threads  # noqa: E402

from minbuild.codegen.library_builder import BuiltLibrary, build_checked  # noqa: E402
from minbuild.options.build_options import BuildOptions  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.toolchain import find_toolchain, parse_target  # noqa: E402

MOST = 1500
TARGETS = (
    *("x86_64-linux-gnu", "x86_64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-android"),
    *("arm-linux-gnueabihf", "arm-linux-androideabi", "riscv64-linux-gnu", "loongarch64-linux-gnu"),
    *("x86_64-windows", "aarch64-windows", "x86_64-macos", "aarch64-macos"),
    *("wasm32-threads", "wasm32-threads-relaxed-simd"),
)
PAGE = ROOT / "reports/baseline/fork_join.md"
INTRODUCTION = f"""# Bytes of fork and join

Written by `python tests/slow/measure_fork_join.py`: the library of `artifacts/` without threads and with {THREADS}, and
what `kernels/runtime/threads.cc` takes of it, as the size report attributes it: the fork and join itself, at most
{MOST:,} bytes by its goal, and the division of kernels' calls. The other bytes that threads add are in kernels which
divide their own work, and in the session. Workers of WebAssembly are started by JavaScript, which is not counted.

| target | library | with threads | fork and join | division |
|---|--:|--:|--:|--:|
"""


def built(artifacts: Path, target: str, threads: str) -> BuiltLibrary:
    options = BuildOptions(threads=threads)
    model = compile_model(artifacts, {}, {}, options=PlanOptions(threads=threads))
    contents = contents_of([model], build_options=options)
    return build_checked(contents, model.registry, parse_target(target), find_toolchain(None, None, options))


def rows(artifacts: Path) -> Iterator[tuple[str, int, int, int, int]]:
    """Target, bytes of both libraries, of the fork and join, and of the division of calls."""
    for target in TARGETS:
        bare, library = (built(artifacts, target, threads) for threads in ("off", str(THREADS)))
        yield target, len(bare.binary.data), len(library.binary.data), *bytes_of_threads(library)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--artifacts", type=Path, default=ROOT / "artifacts")
    lines, over = [], []
    for target, *numbers in rows(parser.parse_args().artifacts):
        lines.append(f"| {target} | {' | '.join(f'{n:,}' for n in numbers)} |")
        print(lines[-1], flush=True)
        over += [target] if numbers[2] > MOST else []
    PAGE.write_text(INTRODUCTION + "\n".join(lines) + "\n")
    for target in over:
        print(f"{target}: more than {MOST:,} bytes of fork and join", file=sys.stderr)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
