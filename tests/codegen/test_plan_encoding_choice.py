"""The encoding of plans by default: tables, but for large plans of loops over time the smaller sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import loop_models
import pytest
from planned_models import compiled

from minbuild.codegen import plan_encoding_choice
from minbuild.codegen.plan_encoding_choice import choose_encoding
from minbuild.options.build_options import COMPILED, LOOPS, PLAIN, BuildOptions
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.plan_encoding import is_dense
from minbuild.toolchain import host_target


class Sizer:
    """Says that a library is larger by `more` bytes where its plans are dense; counts the links."""

    def __init__(self, more: int) -> None:
        self.more, self.links, self.targets = more, 0, (host_target(),)

    def loaded_by_target(self, models: Sequence[CompiledModel], options: BuildOptions) -> tuple[int, ...]:
        self.links += 1
        return (10_000 + self.more * all(is_dense(m.plan_bytes) for m in models),)


@pytest.fixture(scope="module")
def loop() -> CompiledModel:
    return compiled(loop_models.artifacts("elman"), loop_models.REGISTRY)


@pytest.mark.parametrize(("more", "dense"), [(400, True), (40_000, False)])
def test_large_plans_of_loops_take_the_smaller_sum(
    loop: CompiledModel, more: int, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_encoding_choice, "MOST_PLAIN", len(loop.plan_bytes) - 1)
    sizer = Sizer(more)
    chosen = choose_encoding((loop,), BuildOptions(), sizer)
    assert is_dense(chosen.models[0].plan_bytes) == dense and sizer.links == 2
    assert chosen.note.startswith(f"Plan encoding {'dense' if dense else 'plain'} saves")


def test_small_plans_stay_tables_without_links(loop: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_encoding_choice, "MOST_PLAIN", len(loop.plan_bytes))
    sizer = Sizer(400)
    assert choose_encoding((loop,), BuildOptions(), sizer).models == (loop,)
    assert sizer.links == 0


@pytest.mark.parametrize("options", [BuildOptions(plan_encoding=PLAIN), BuildOptions(flavor=COMPILED)])
def test_tables_that_are_asked_for_stay(
    loop: CompiledModel, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_encoding_choice, "MOST_PLAIN", 0)
    assert choose_encoding((loop,), options, Sizer(400)).models == (loop,)


def test_plans_without_loops_over_time_stay_tables(
    loop: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_encoding_choice, "MOST_PLAIN", 0)
    tensors = tuple(replace(t, per_sample=min(t.per_sample, 1)) for t in loop.plan.tensors)
    straight = replace(loop, plan=replace(loop.plan, tensors=tensors))
    assert choose_encoding((straight,), BuildOptions(plan_encoding=LOOPS), Sizer(400)).models == (straight,)
