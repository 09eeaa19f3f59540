"""Bytes of every operator in the full build, per target, as linked: reports/baseline/operators.json.

    python tests/slow/measure_operators.py [TARGET...]

Own bytes are those that only the operator's file needs; shared bytes those of helpers that it uses together with
others.
`python -m minbuild.docgen` puts the figures into docs/reference/operators.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
TARGETS = ("x86_64-linux-gnu", "aarch64-linux-musl", "arm-linux-musleabihf", "riscv64-linux-musl")


def main(targets: list[str]) -> None:
    found = {name: measure(name) for name in targets or TARGETS}
    for name, figures in found.items():
        print(f"{name}: {figures['file']:,} bytes, {len(figures['operators'])} files of operators")
    if not targets:
        path = ROOT / "reports" / "baseline" / "operators.json"
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


def measure(name: str) -> dict[str, object]:
    """`file`, and of each operator file its own bytes and those of the helpers it calls."""
    from minbuild.analysis.attribution import attribute
    from minbuild.codegen.library_builder import build_checked
    from minbuild.ops import registry
    from minbuild.planning.library_contents import full_contents
    from minbuild.toolchain import find_toolchain, parse_target

    library = build_checked(full_contents(registry()), registry(), parse_target(name), find_toolchain())
    build = library
    shares = attribute(build.binary, build.owners, build.kernels).shares
    stems = sorted({k.stem for k in library.kernels})
    own = {s.owner.name: s.bytes for s in shares if s.owner.kind == "operator"}
    shared = {stem: sum(s.bytes for s in shares if stem in s.owner.operators) for stem in stems}
    return {
        "file": len(library.built.shared),
        "operators": {stem: {"own": own.get(stem, 0), "shared": shared[stem]} for stem in stems},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
