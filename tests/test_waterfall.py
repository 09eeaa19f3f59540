"""The waterfall: real builds from every kernel to the trimmed library."""

from __future__ import annotations

from dataclasses import fields

import pytest
from case_sets import GOLDEN

from minbuild.emit import everything
from minbuild.needs import contents_of
from minbuild.planned import plan_model
from minbuild.report import tables
from minbuild.toolchain import build_library, find_toolchain, host_target
from minbuild.toolchain.flags import Mechanisms
from minbuild.waterfall import CONTENTS, MECHANISMS, Builder, waterfall


@pytest.fixture(scope="module")
def builder() -> Builder:
    model = plan_model(GOLDEN / "dense_fixed", {}, {})
    selected = contents_of([model])
    return Builder(selected, everything(model.registry), model.registry, host_target(), find_toolchain())


def test_every_mechanism_is_a_step():
    assert {f.name for f in fields(Mechanisms)} == set(MECHANISMS)


def test_all_steps_give_the_trimmed_contents(builder):
    all_of_them = builder.contents(frozenset(builder.steps))
    assert (set(all_of_them.kernels), all_of_them.features) == (
        set(builder.selected.kernels),
        builder.selected.features,
    )
    assert builder.contents(frozenset()).kernels == builder.full.kernels


def test_each_choice_of_contents_drops_something(builder):
    taken: frozenset[str] = frozenset()
    counts = [len(builder.contents(taken).kernels)]
    for step in ("operators", "types"):
        taken |= {step}
        counts.append(len(builder.contents(taken).kernels))
    assert counts[0] > counts[1] > counts[2] == len(builder.selected.kernels)
    with_features = builder.contents(taken).features
    assert with_features > builder.contents(taken | {"features"}).features


def test_bars_lead_from_everything_to_the_trimmed_file(builder):
    told: list[str] = []
    bars = waterfall(Builder(*(getattr(builder, f.name) for f in fields(builder)[:-1]), told.append))
    assert [b.step.replace(" ", "_") for b in bars[1:]] == list(builder.steps) == [*CONTENTS, *MECHANISMS]
    sources_size = builder.size(frozenset(builder.steps))
    assert bars[-1].file == sources_size < bars[0].file
    assert bars[0].alone is None and all(bar.alone is not None and bar.alone >= 0 for bar in bars[1:])
    assert all(later.file <= earlier.file for earlier, later in zip(bars, bars[1:], strict=False))
    assert any("hidden" in line for line in told)


def test_leaving_nothing_out_is_the_ordinary_build(builder):
    from minbuild.emit import emit_sources

    sources = emit_sources(builder.selected, builder.registry)
    built = build_library(sources, builder.target, builder.toolchain)
    assert builder.size(frozenset(builder.steps)) == len(built.shared)


def test_the_table_says_what_each_step_saved(builder):
    from minbuild.size.report import Bar

    class Target:
        waterfall = (Bar("everything", "", 100, None), Bar("strip", "", 60, 50), Bar("fold", "", 55, 1))

    lines = [line.cells for line in tables.waterfall(Target).lines]  # type: ignore[arg-type]
    assert lines == [("everything", "", 100, "", ""), ("strip", "", 60, 40, 50), ("fold", "", 55, 5, 1)]
