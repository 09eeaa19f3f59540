"""The waterfall: real builds from every kernel to the trimmed library."""

from __future__ import annotations

import pytest
from case_sets import GOLDEN

from minbuild.analysis.whatif.ablation import SELECTION, Ablation, title, waterfall
from minbuild.options.build_options import BuildOptions, build_option, table
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import SAFETY, full_contents
from minbuild.report import size_tables as library
from minbuild.toolchain import build_all, build_library, find_toolchain, host_target, parse_target


def builder_of(build_options: BuildOptions, target: str = "") -> Ablation:
    model = compile_model(GOLDEN / "dense_fixed", {}, {}, options=PlanOptions(graphs=build_options.graphs))
    whole = compile_model(GOLDEN / "dense_fixed", {}, {})
    selected, unbounded = (contents_of([m], build_options=build_options) for m in (model, whole))
    full = full_contents(model.registry)
    where = parse_target(target) if target else host_target()
    return Ablation(
        selected, unbounded, full, model.registry, where, find_toolchain(build_options=build_options)
    )


@pytest.fixture(scope="module")
def builder() -> Ablation:
    return builder_of(BuildOptions())


def test_every_choice_that_saves_is_a_step(builder):
    saving = [c.name for c in table() if c.effect and c.default != c.neutral]
    assert list(builder.steps) == [*SELECTION, *saving]
    others = {c.name: next(v for v in c.values if v != c.neutral) for c in table() if c.effect}
    most = builder_of(BuildOptions(**{**others, "graphs": ("train",)}))
    assert set(most.steps) == {*SELECTION, *(c.name for c in table() if c.effect)}
    least = builder_of(BuildOptions(**{c.name: c.neutral for c in table() if c.effect}))
    assert set(least.steps) == set(SELECTION)


def test_a_toolchain_has_the_steps_that_it_can_leave_out():
    steps = builder_of(BuildOptions(error_messages="codes"), "wasm32").steps
    assert {"error_messages", "optimize", "kernel_features"} < set(steps) and not {
        "icf",
        "section_headers",
    } & set(steps)


def test_all_steps_give_the_trimmed_contents(builder):
    all_of_them = builder.contents(frozenset(builder.steps))
    assert (set(all_of_them.kernels), all_of_them.features) == (
        set(builder.selected.kernels),
        builder.selected.features,
    )
    assert builder.contents(frozenset()).kernels == builder.full.kernels


def test_each_build_option_contents_drops_something(builder):
    taken: frozenset[str] = frozenset()
    counts = [len(builder.contents(taken).kernels)]
    for step in ("operators", "types"):
        taken |= {step}
        counts.append(len(builder.contents(taken).kernels))
    assert counts[0] > counts[1] > counts[2] == len(builder.selected.kernels)
    with_features = builder.contents(taken).features
    assert with_features > builder.contents(taken | {"kernel_features"}).features


def test_what_the_device_lacks_is_there_before_its_step():
    lacking = BuildOptions(
        error_messages="codes", checkpoint_writing="off", file_io="off", graphs=("train", "optimize")
    )
    builder = builder_of(lacking)
    steps = frozenset(builder.steps)
    assert {"error_messages", "checkpoint_writing", "file_io", "graphs"} < steps
    bare = builder.contents(steps)
    assert bare == builder.selected and not (bare.error_messages or bare.checkpoint_writing or bare.file_io)
    for step in ("error_messages", "checkpoint_writing", "file_io"):
        before = builder.contents(steps - {step})
        assert getattr(before, step) and before.kernels == bare.kernels
    assert set(builder.contents(steps - {"graphs"}).kernels) >= set(bare.kernels)
    sizes = {
        step: builder.size(steps - {step}) for step in ("error_messages", "checkpoint_writing", "file_io")
    }
    assert min(sizes.values()) > builder.size(steps)


def test_safe_defaults_are_there_before_their_steps():
    names = ("rollback", "finite_checks", "denormals", "checkpoint_checks", "accept_checkpoint")
    lacking = BuildOptions(
        rollback="off",
        finite_checks="off",
        denormals="keep",
        checkpoint_checks="off",
        accept_checkpoint="any",
    )
    for target in ("", "wasm32"):
        builder = builder_of(lacking, target)
        steps = frozenset(builder.steps)
        assert (
            steps >= {*names} and builder.contents(steps) == builder.selected and not builder.selected.safety
        )
        for name in names[:-1]:
            assert len(builder.contents(steps - {name}).safety) == 1
        assert builder.contents(steps - {*names}).safety == frozenset(SAFETY)


def test_bars_lead_from_everything_to_the_trimmed_file(builder):
    told: list[str] = []
    build_all(builder.orders(), progress=told.append)
    assert f"built {len(builder.orders())} of {len(builder.orders())} variants" in told
    bars = waterfall(builder)
    assert [b.step for b in bars[1:]] == [title(step) for step in builder.steps]
    assert title("visibility") == build_option("visibility").key
    assert bars[-1].file == builder.size(frozenset(builder.steps)) < bars[0].file
    assert bars[0].leave_one_out is None and all(
        bar.leave_one_out is not None and bar.leave_one_out >= 0 for bar in bars[1:]
    )
    assert all(later.file <= earlier.file for earlier, later in zip(bars, bars[1:], strict=False))


def test_leaving_nothing_out_is_the_ordinary_build(builder):
    from minbuild.codegen.sources import emit_sources

    sources = emit_sources(builder.selected, builder.registry)
    built = build_library(sources, builder.target, builder.toolchain)
    assert builder.size(frozenset(builder.steps)) == len(built.shared)


def test_the_table_says_what_each_step_saved(builder):
    from minbuild.ir.size_report import Bar

    class Target:
        waterfall = (Bar("everything", "", 100, None), Bar("strip", "", 60, 50), Bar("icf", "", 55, 1))

    lines = [line.cells for line in library.waterfall(Target).lines]  # type: ignore[arg-type]
    assert lines == [("everything", "", 100, "", ""), ("strip", "", 60, 40, 50), ("icf", "", 55, 5, 1)]
