"""Operands of packed products begin at lines of the cache, whatever the sizes of what lies before them."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_sets import load, trainer
from packed_model import packed_set
from places import GOLDEN
from trainers import plan_of

from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir import Plan
from minbuild.ops import registry
from minbuild.planning.arena.layout import buffer_sizes, solution_of
from minbuild.training.library import Session

LINE = 64


def offsets(plan: Plan, batch: int) -> list[int]:
    found: list[int] = []
    for routine in plan.routines:
        sizes = buffer_sizes(routine.buffers, dict.fromkeys(plan.symbols, batch))
        found += solution_of(routine.buffers, sizes).offsets
    return found


@pytest.mark.parametrize("name", ["packed", "recurrent"])
def test_tensors_of_plans_with_packed_products_begin_at_lines(tmp_path: Path, name: str) -> None:
    plan = plan_of(load_artifacts(packed_set(tmp_path, name=name)), registry())
    for batch in (1, 3, 17):
        assert not any(at % LINE for at in offsets(plan, batch))


def test_tensors_of_small_plans_stand_close_together() -> None:
    plan = plan_of(load_artifacts(GOLDEN / "dense"), registry())
    assert any(at % LINE for at in offsets(plan, 1))


def test_parameters_and_their_gradients_begin_at_lines(tmp_path: Path) -> None:
    case = load(packed_set(tmp_path))
    built = trainer(case.folder)
    session = Session(built.library, built.data, case.checkpoint)
    trained = [p.name for p in load_artifacts(case.folder).checkpoint.parameters if p.trainable]
    gradients = [g for g in map(session.gradient, trained) if g is not None]
    assert len(gradients) == len(trained)
    for arrays in ([session.parameter(name) for name in trained], gradients):
        assert min(x.ctypes.data for x in arrays) % LINE == 0
