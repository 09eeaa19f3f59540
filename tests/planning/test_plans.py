"""The plans of the golden sets, in figures: a pass that stops rewriting changes them, and so does a planner that takes
more room.

    python tests/planning/test_plans.py

records them again, after a change on purpose; the difference is part of the review."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [] if __name__ != "__main__" else [str(Path(__file__).parents[1] / "support")]

from places import GOLDEN  # noqa: E402

from minbuild.frontend.artifacts import load_artifacts  # noqa: E402
from minbuild.ir import Plan  # noqa: E402
from minbuild.ops import registry  # noqa: E402
from minbuild.passes.lowering.lower import lower  # noqa: E402
from minbuild.passes.manager import optimize  # noqa: E402
from minbuild.planning.plan import build_plan, peak_bytes  # noqa: E402
from minbuild.planning.plan_encoding import encode_plan  # noqa: E402

pytestmark = pytest.mark.unit
RECORDED = GOLDEN / "plans.json"
NAMES = ("bce", "conv", "dense", "embedding", "l1", "residual", "transfer", "weighted")


def figures(name: str) -> dict[str, Any]:
    """Of one set: kernels in the order in which they run, bytes at several batches, tables."""
    artifacts, operators = load_artifacts(GOLDEN / name), registry()
    plan = build_plan(optimize(lower(artifacts, operators, {}), operators), operators)
    return {
        "steps": {r.name: " ".join(_step(plan, s) for s in r.steps) for r in plan.routines},
        "features": " ".join(sorted(plan.features)),
        "bytes": {
            "trainable": plan.trainable_bytes,
            "persistent": plan.persistent_bytes,
            "plan": len(encode_plan(plan, dict.fromkeys(plan.symbols, 32))),
            **{
                f"arena, bound at {n}": list(peak_bytes(plan, dict.fromkeys(plan.symbols, n)))
                for n in (1, 8, 33)
            },
        },
        "tensors": len(plan.tensors),
        "parameters": " ".join(p.name for p in plan.parameters),
    }


def _step(plan: Plan, step: Any) -> str:
    return (
        plan.kernels[step.kernel].function
        + ("+" if step.accumulate else "")
        + f"@{step.loop}" * bool(step.loop)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_recorded_one(name: str) -> None:
    found, wanted = figures(name), json.loads(RECORDED.read_text())[name]
    assert found == wanted, f"on purpose? Then `python tests/planning/{Path(__file__).name}` records it"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: figures(name) for name in NAMES}, indent=1) + "\n")
