"""Equal lowerings: the same bits whatever comes, and chosen by the bytes of the whole library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trainers
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`
from places import GOLDEN

from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase as Case
from minbuild.planning.compile import compile_model, replan
from minbuild.verify.differential import differences, run_script, seeded_script

REGISTRY = registry()
EQUALS = [(key, equal) for key, op in REGISTRY.ops.items() for equal in op.equals]
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 1.0, -1.0])


@pytest.mark.parametrize("at", range(len(EQUALS)), ids=[equal.title for _, equal in EQUALS])
def test_equal_lowerings_have_the_same_bits(at: int, tmp_path: Path) -> None:
    key, equal = EQUALS[at]
    op = REGISTRY.ops[key]
    random = np.random.default_rng(7)
    inputs = np.concatenate([SPECIAL, random.standard_normal(200), random.standard_normal(57) * 1e-38])
    other = REGISTRY.with_lowering(key, equal)
    stems = {REGISTRY.stems[k.function] for k in (*op.kernels, *equal.kernels)}
    library = trainers.library_of(trainers.everything_of(stems, REGISTRY), REGISTRY, tmp_path)
    one = trainers.one_node(op, Case("special", (inputs,), {}))
    plans = [trainers.plan_of(one.artifacts, each) for each in (REGISTRY, other)]
    used = [{kernel.function for kernel in plan.kernels} for plan in plans]
    assert equal.needs <= used[1] and not equal.needs & used[0]
    ours, theirs = (trainers.run(library, plan, one) for plan in plans)
    assert ours.keys() == theirs.keys() and all(ours[n].tobytes() == theirs[n].tobytes() for n in ours)


def test_the_smaller_library_is_taken(minbuild: Command, tmp_path: Path) -> None:
    """And the report says what it saves; without such a choice, nothing is tried."""
    folder, options = GOLDEN / "residual", ("--loop-variants", "one", "--no-analysis")
    sizes = {}
    for choice in ("direct", "least"):
        out = tmp_path / choice
        said = minbuild("reduce", folder, "--out", out, "--lowerings", choice, *options)
        assert said.code == 0 and "PROVEN" in said.out, said.err
        report = json.loads((out / "report/report.json").read_text())
        plan = (out / "model/trainer.plan").read_bytes()
        sizes[choice] = report["targets"][0]["trimmed"]["loaded"] + len(plan)
        held = json.loads((out / "manifest.json").read_text())["holds"]["kernels"]
        assert ("relu<float>" in held) == (choice == "direct") and "relu_grad<float>" in held
        told = [note for note in report["model"]["notes"] if "Relu by Clip" in note]
        assert [note.split(" on ")[0] for note in told] == (
            [f"Relu by Clip saves {sizes['direct'] - sizes[choice]} B"] if choice == "least" else []
        )
    assert sizes["least"] < sizes["direct"]


def test_a_whole_model_trains_with_the_same_bits(tmp_path: Path) -> None:
    model = compile_model(GOLDEN / "residual", {}, {})
    key, equal = next((k, e) for k, e in EQUALS if e.title == "Relu by Clip")
    other = replan(model, model.registry.with_lowering(key, equal))
    assert {k.function for k in model.plan.kernels} - {k.function for k in other.plan.kernels} == {"relu"}
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    contents = trainers.contents_of([model.plan, other.plan])
    trainers.library_of(contents, model.registry, tmp_path)
    data = next(tmp_path.iterdir()).read_bytes()
    ours, theirs = (run_script(n, script, data, m.plan_bytes, 0) for n, m in (("a", model), ("b", other)))
    assert not differences(ours, theirs)
