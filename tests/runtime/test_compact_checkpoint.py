"""Compact checkpoints: they load to the same parameters, and every damage to one is refused before anything changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from places import GOLDEN

from minbuild.codegen.library_builder import build_checked
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.options.build_options import in_profile
from minbuild.planning.compact_checkpoint import compact_checkpoint
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel, with_compact_checkpoint
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import encode_plan
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import Library, Session, TrainerError

FLAVORS = ("interpreted", "compiled", "wide")
SUMS = 8  # bytes at the end


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return with_compact_checkpoint(compile_model(GOLDEN / "transfer", {}, {}))


@pytest.fixture(scope="module", params=FLAVORS)
def library(model: CompiledModel, request: pytest.FixtureRequest, tmp_path_factory) -> tuple[Library, bytes]:  # type: ignore[no-untyped-def]
    """A library that reads compact checkpoints, and its plan."""
    wide = request.param == "wide"
    if wide:  # as parameters of more than two gigabytes ask for
        model = replace(model, plan_bytes=encode_plan(model.plan, model.largest, True))
    flavor = "interpreted" if wide else request.param
    build_options = replace(in_profile("smallest"), flavor=flavor, error_messages="text")
    contents = contents_of((model,), build_options=build_options)
    assert contents.compact_checkpoints
    toolchain = find_toolchain(build_options=build_options)
    built = build_checked(contents, model.registry, host_target(), toolchain)
    path: Path = tmp_path_factory.mktemp(request.param) / "library"
    path.write_bytes(built.built.shared)
    return Library(path), b"" if built.compiled else model.plan_bytes


def values(session: Session) -> dict[str, np.ndarray]:
    return {name: session.parameter(name).copy() for name in session.parameters}


def test_it_has_the_same_parameters(library: tuple[Library, bytes], model: CompiledModel) -> None:
    ours = values(Session(*library, model.compact_checkpoint))
    theirs = values(Session(*library, model.checkpoint))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert any(array.any() for array in ours.values())


def test_what_is_saved_is_a_checkpoint_of_onnx_runtime(
    library: tuple[Library, bytes], model: CompiledModel
) -> None:
    saved = Session(*library, model.compact_checkpoint).checkpoint(True)
    assert saved == Session(*library, model.checkpoint).checkpoint(True)
    held = {p.name: p.data for p in read_checkpoint(saved).parameters}
    wanted = {p.name: p.data for p in read_checkpoint(model.checkpoint).parameters}
    assert held.keys() == wanted.keys()
    assert all(np.array_equal(held[name], wanted[name]) for name in held)


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Every length, one bit of every byte of the head, the sums, and some between, and pieces in another order."""
    yield from ((f"cut to {n}", whole[:n]) for n in (*range(0, 33), *range(len(whole) - 33, len(whole))))
    yield from ((f"{n} more", whole + bytes(n)) for n in (1, 4, 8, 16, 64))
    places = [*range(8), *range(8, len(whole) - SUMS, 31), *range(len(whole) - SUMS, len(whole))]
    yield from ((f"bit {at % 8} of byte {at}", _flipped(whole, at)) for at in places if at > 3)
    yield "halves exchanged", whole[:8] + whole[264:520] + whole[8:264] + whole[520:]


def _flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]


def test_damage_is_refused_and_changes_nothing(library: tuple[Library, bytes], model: CompiledModel) -> None:
    session = Session(*library, model.checkpoint)
    for name in session.parameters:
        session.parameter(name)[...] += 1
    before = values(session)
    count = 0
    for what, data in damaged(model.compact_checkpoint):
        with pytest.raises(TrainerError, match="bad checkpoint") as caught:
            session.load(data)
        assert str(caught.value), what
        count += 1
        after = values(session)
        assert all(np.array_equal(before[name], after[name]) for name in before), what
    assert count > 100
    session.load(model.compact_checkpoint)
    assert any(not np.array_equal(before[name], array) for name, array in values(session).items())


def test_that_of_another_model_is_refused(library: tuple[Library, bytes], model: CompiledModel) -> None:
    other = encode_plan(replace(model.plan, fingerprint=model.plan.fingerprint ^ 1), model.largest)
    foreign = compact_checkpoint(read_checkpoint(model.checkpoint), other)
    session = Session(*library, model.checkpoint)
    with pytest.raises(TrainerError, match="bad checkpoint: checkpoint of another model"):
        session.load(foreign)
    session.load(foreign, accept_any=True)


def test_libraries_without_it_refuse_it(model: CompiledModel, tmp_path: Path) -> None:
    build_options = in_profile("balanced")
    plain = replace(model, compact_checkpoint=b"")
    contents = contents_of((plain,), build_options=build_options)
    built = build_checked(
        contents, model.registry, host_target(), find_toolchain(build_options=build_options)
    )
    (tmp_path / "library").write_bytes(built.built.shared)
    with pytest.raises(TrainerError, match="not an intact, aligned checkpoint"):
        Session(Library(tmp_path / "library"), model.plan_bytes, model.compact_checkpoint)


def test_a_large_one_is_mapped(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.planning.compact_checkpoint.LEAST_IN_PIECES", 100)
    found = compact_checkpoint(read_checkpoint(model.checkpoint), model.plan_bytes)
    assert isinstance(found, memoryview) and found.readonly
    assert bytes(found) == model.compact_checkpoint


def test_what_it_has_no_place_for_is_named(model: CompiledModel) -> None:
    held = read_checkpoint(model.checkpoint)
    with pytest.raises(BadInput, match="the checkpoint has properties.*--initial-checkpoint ort"):
        compact_checkpoint(replace(held, properties={"epoch": 1}), model.plan_bytes)
    with pytest.raises(BadInput, match="the checkpoint has no values"):
        compact_checkpoint(replace(held, nominal=True), model.plan_bytes)
