"""Moments of SGD: checkpoints have them, because ONNX Runtime refuses one without, and memory has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, SHARED, TRAIN, Trainer, load, loaded, trainer
from sessions import refusal
from shared_library import shared_library

from minbuild.analysis.measure import persistent_of
from minbuild.analysis.package_compatibility import InstalledPackage, missing_capabilities
from minbuild.codegen.sources import emit_sources
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.checkpoint import schema as checkpoint_schema
from minbuild.ir import Plan
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.capabilities import capabilities_of
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import IDLE_VERSION, decode_plan, encode_plan
from minbuild.planning.size_limits import needs_64_bits, saved_bytes
from minbuild.training.library import Session, arena_size

CASE = load(GOLDEN / "residual")
BAD_PLAN = 2
FORMS: dict[str, Callable[[LibraryContents, Trainer], LibraryContents]] = {
    "of SGD": lambda contents, _: contents,
    "of everything": lambda contents, _: replace(contents, idle_moments=2),
    "compiled": lambda contents, built: replace(contents, compiled_plan=built.data),
    "dense": lambda contents, _: replace(contents, dense=1),
    "dense, of everything": lambda contents, _: replace(contents, dense=1, idle_moments=2),
    "wide": lambda contents, _: replace(contents, wide=True),
}


def made(contents: LibraryContents, plan: Plan) -> Trainer:
    """The trainer of a library of these contents, with the plan as it reads it."""
    data = encode_plan(plan, dict.fromkeys(plan.symbols, 32), contents.wide, dense=contents.dense)
    library = shared_library(emit_sources(contents, registry()))
    return Trainer(*loaded(library), plan, b"" if contents.compiled else data, contents)


def of_form(name: str) -> Trainer:
    built = trainer(GOLDEN / "residual")
    return made(FORMS[name](built.contents, built), built.plan)


def storing() -> Plan:
    """The plan of residual as it was: with room for moments that nothing reads."""
    operators = registry()
    program = replace(lower(CASE.artifacts, operators, {}), idle_moments=False)
    return build_plan(optimize(program, operators), operators)


def with_moments(value: float) -> bytes:
    """The checkpoint after training, all moments of this value."""
    root = decode(checkpoint_schema(), (GOLDEN / "residual/checkpoint_final_opt").read_bytes())
    for state in root["groups"][0]["states"]:
        for tensor in state["moments"]:
            tensor["data"] = np.full(len(bytes(tensor["data"])) // 4, value, np.float32).tobytes()
    return encode(checkpoint_schema(), root)


def trained(session: Session, steps: int = 2) -> list[bytes]:
    """The losses of some steps."""
    session.learning_rate = 0.01
    losses = []
    for step in range(steps):
        losses += [session.run(TRAIN, CASE.batch(step))[0].tobytes()]
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


@pytest.mark.parametrize(
    "folder", [GOLDEN / "residual", GOLDEN / "mse", SHARED / "mlp_sgd"], ids=lambda f: f.name
)
def test_parameters_and_gradients_persist_and_no_moment(folder: Path) -> None:
    if not (folder / "meta.json").is_file():
        pytest.skip("the set is not here")
    plan = trainer(folder).plan
    found = persistent_of(plan)
    assert plan.moments == 1 and plan.moment_bytes == 0
    assert plan.counted_bytes - plan.persistent_bytes == plan.trainable_bytes > 0
    assert found.optimizer == 0 and found.parameters == found.gradients == plan.trainable_bytes
    assert plan.persistent_bytes < 2 * plan.trainable_bytes + plan.rollback_bytes + 8
    assert saved_bytes(plan) == plan.persistent_bytes


def test_a_session_is_smaller_by_the_moments() -> None:
    built = trainer(GOLDEN / "residual")
    before = made(replace(built.contents, idle_moments=2), storing())
    sizes = [arena_size(one.library, one.data) for one in (before, built)]
    assert 0 <= sizes[0] - sizes[1] - built.plan.trainable_bytes < 64


@pytest.mark.parametrize("form", FORMS)
def test_checkpoints_have_zeros_whatever_was_read(form: str) -> None:
    """Otherwise they are byte for byte what a session with room for moments writes."""
    before = made(replace(trainer(GOLDEN / "residual").contents, idle_moments=2), storing())
    zeros, ones = with_moments(0), with_moments(1)
    with_room, without = before.session(zeros), of_form(form).session(ones)
    assert trained(without) == trained(with_room)
    assert without.checkpoint(True) == with_room.checkpoint(True)
    assert without.checkpoint(False) == with_room.checkpoint(False)
    (group,) = read_checkpoint(without.checkpoint(True)).groups
    assert all(not m["momentum0"].any() for m in group.moments.values()) and len(group.moments) > 10


def test_what_a_checkpoint_has_of_moments_is_passed_over() -> None:
    root = decode(checkpoint_schema(), CASE.checkpoint)
    root["groups"] = decode(checkpoint_schema(), with_moments(1))["groups"]
    for state in root["groups"][0]["states"]:
        state["moments"] = []
    session = trainer(GOLDEN / "residual").session(encode(checkpoint_schema(), root))
    assert session.step_count == root["groups"][0]["step"]


@pytest.mark.parametrize("idle_moments", [1, 2])
def test_plans_of_earlier_releases_run_as_they_did(idle_moments: int) -> None:
    """They have room for moments, which a library that has plans of all kinds keeps."""
    built = trainer(GOLDEN / "residual")
    session = made(replace(built.contents, idle_moments=idle_moments), storing()).session(with_moments(1))
    assert trained(session) == trained(built.session(with_moments(0)))
    (group,) = read_checkpoint(session.checkpoint(True)).groups
    assert all(m["momentum0"].any() == (idle_moments == 2) for m in group.moments.values())


def test_libraries_that_store_all_moments_refuse_the_plan() -> None:
    built = trainer(GOLDEN / "residual")
    library = made(replace(built.contents, idle_moments=0), storing())
    assert library.session(with_moments(1)).step_count > 0
    assert refusal(lambda: Session(library.library, built.data, CASE.checkpoint)).status == BAD_PLAN


@pytest.mark.parametrize("name", ["dense", "residual"])
def test_one_library_runs_plans_of_both_kinds(name: str) -> None:
    models = [compile_model(GOLDEN / n, {}, {}) for n in ("dense", "residual")]
    contents = contents_of(models)
    assert contents.idle_moments == 2
    case, both = load(GOLDEN / name), made(contents, models[name == "residual"].plan)
    ours, own = both.session(case.checkpoint), trainer(GOLDEN / name).session(case.checkpoint)
    for session in (ours, own):
        session.run(TRAIN, case.batch(0))
        session.optimizer_step()
    assert ours.checkpoint(True)[:-64] == own.checkpoint(True)[:-64]  # but for the fingerprint of the model
    (group,) = read_checkpoint(ours.checkpoint(True)).groups
    assert any(m["momentum0"].any() for m in group.moments.values()) == (name == "dense")


def test_only_what_plans_need_is_in_a_library() -> None:
    """Other kernels, asked for by name, may be for plans that store moments."""
    adamw, sgd = (compile_model(GOLDEN / n, {}, {}) for n in ("dense", "residual"))
    assert contents_of([adamw]).idle_moments == 0 and contents_of([sgd]).idle_moments == 1
    assert contents_of([sgd], ExtraRequirements(("com.microsoft:AdamWOptimizer",))).idle_moments == 2
    assert not decode_plan(adamw.plan_bytes)["version"] & IDLE_VERSION
    assert decode_plan(sgd.plan_bytes)["version"] & IDLE_VERSION


def test_packages_tell_plans_of_both_kinds() -> None:
    adamw, sgd = (compile_model(GOLDEN / n, {}, {}) for n in ("dense", "residual"))

    def package(contents: LibraryContents) -> InstalledPackage:
        return InstalledPackage(
            Path("dist"), minbuild="0", capabilities=capabilities_of(contents), targets=(), graphs=()
        )

    both = package(contents_of([adamw, sgd]))
    assert not missing_capabilities(adamw, both) and not missing_capabilities(sgd, both)
    earlier = replace(contents_of([sgd]), idle_moments=0)
    (said,) = missing_capabilities(sgd, package(earlier))
    assert said.startswith("dist: looks for moments in memory that this optimizer never reads.")
    assert any(
        "lacks the kernel sgd<float>" in text
        for text in missing_capabilities(sgd, package(contents_of([adamw])))
    )


def test_moments_count_where_a_plan_becomes_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow library counts the bytes of checkpoints in 32 bits, and those have the moments."""
    plan = trainer(GOLDEN / "residual").plan
    whole = plan.persistent_bytes + plan.trainable_bytes
    monkeypatch.setattr("minbuild.planning.size_limits.MOST_PERSISTENT", whole)
    assert not needs_64_bits(plan, dict.fromkeys(plan.symbols, 1))
    monkeypatch.setattr("minbuild.planning.size_limits.MOST_PERSISTENT", whole - 1)
    assert f"take {whole:,} bytes" in needs_64_bits(plan, dict.fromkeys(plan.symbols, 1))
