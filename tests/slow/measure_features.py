"""Bytes that each part which must be asked for adds to a trainer, per target, as linked: reports/baseline/parts.json.

    python tests/slow/measure_features.py [TARGET...]

`python -m minbuild.docgen` puts the figures into docs/reference/ort-api.md.
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
        print(name, figures)
    if not targets:
        path = ROOT / "reports" / "baseline" / "parts.json"
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


def measure(name: str) -> dict[str, int]:
    """Bytes of the shared library of artifacts/ as it is by default, and what each part adds to it."""
    from minbuild.codegen.sources import COMPONENTS, emit_sources
    from minbuild.options.plan_options import PlanOptions
    from minbuild.planning.compile import compile_model
    from minbuild.planning.compiled_model import with_components
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import build_library, find_toolchain, parse_target

    def size(parts: tuple[str, ...], checks_loss: bool = False) -> int:
        model = compile_model(ROOT / "artifacts", {}, {}, options=PlanOptions(checks_loss=checks_loss))
        contents = contents_of((with_components(model, parts),))
        sources = emit_sources(contents, model.registry)
        return len(build_library(sources, parse_target(name), find_toolchain()).shared)

    plain = size(())
    added = {part: size((part,)) - plain for part in COMPONENTS}
    return {
        "default": plain,
        **added,
        "all of them": size(tuple(COMPONENTS)) - plain,
        "check-loss": size((), checks_loss=True) - plain,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
