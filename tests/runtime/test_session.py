"""A session to the last byte: the memory that it needs, what it refuses, what it leaves behind, where texts end."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, load, trainer
from sessions import built, refusal

from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.library_contents import ROLLBACK
from minbuild.planning.plan_encoding import plan_schema
from minbuild.training import c_api
from minbuild.training import library as device
from minbuild.training.library import Session, TrainerError, aligned_copy, arena_size

CASE, BUILT = load(GOLDEN / "residual"), trainer(GOLDEN / "residual")
INVALID, BAD_PLAN, BAD_CHECKPOINT, OUT_OF_MEMORY, BAD_SHAPE, IO = 1, 2, 4, 5, 6, 8


OPTIMIZE = 2


# ----------------------------------------------------------------------------------------------------- memory


def test_memory_of_exactly_the_size_that_is_asked_for() -> None:
    size = arena_size(BUILT.library, BUILT.data)
    assert size % 16 == 0
    room = aligned_copy(b"\xee" * (size + 64))
    Session(BUILT.library, BUILT.data, CASE.checkpoint, arena=room[:size]).run(TRAIN, CASE.batch(0))
    assert bytes(room[size:]) == b"\xee" * 64
    for short in (1, 4, 15, 16, 32):
        error = refusal(
            lambda short=short: Session(BUILT.library, BUILT.data, None, arena=room[: size - short])
        )
        assert error.status == OUT_OF_MEMORY and str(size) in str(error) and str(size - short) in str(error)


@pytest.mark.parametrize("off", [1, 4, 8])
def test_memory_at_an_odd_address_is_refused(off: int) -> None:
    size = arena_size(BUILT.library, BUILT.data)
    room = aligned_copy(bytes(size + 64))
    assert refusal(lambda: Session(BUILT.library, BUILT.data, None, arena=room[off:])).status == OUT_OF_MEMORY
    Session(BUILT.library, BUILT.data, None, arena=room[16:])


@pytest.mark.parametrize("off", [1, 2, 4])
def test_a_plan_at_an_odd_address_is_refused(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(data: bytes, alignment: int = 64) -> np.ndarray:
        room = aligned_copy(bytes(off) + bytes(data))
        return room[off:]

    monkeypatch.setattr(device, "aligned_copy", moved)
    assert refusal(lambda: Session(BUILT.library, BUILT.data, None)).status == BAD_PLAN


def test_a_checkpoint_at_an_odd_address_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "aligned_copy", lambda data: aligned_copy(b"--" + bytes(data))[2:])
    assert refusal(lambda: session.load(CASE.checkpoint)).status == BAD_CHECKPOINT


@pytest.mark.parametrize("sizes", [(), (1, 1), (0,), (-1,), (2**31 - 1,)])
def test_other_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    for call in (
        lambda: arena_size(BUILT.library, BUILT.data, sizes),
        lambda: Session(BUILT.library, BUILT.data, None, sizes),
    ):
        error = refusal(call)
        wanted = "takes no such sizes" if len(sizes) == 1 else "expected 1 symbols"
        assert error.status == (BAD_SHAPE if len(sizes) == 1 else INVALID) and wanted in str(error)


def test_garbage_in_the_memory_is_nothing_to_start_from() -> None:
    """Gradients, moments, step count and seed start at zero without a checkpoint's."""
    size = arena_size(BUILT.library, BUILT.data)
    session = Session(BUILT.library, BUILT.data, CASE.checkpoint, arena=aligned_copy(b"\xff" * size))
    gradients = [session.gradient(name) for name in session.parameters]
    assert all(not g.any() for g in gradients if g is not None)
    (group,) = read_checkpoint(session.checkpoint(True)).groups
    assert group.step == 0 and session.seed == 0 and session.learning_rate == pytest.approx(0.001)
    assert all(not m.any() for moments in group.moments.values() for m in moments.values())
    bare = read_checkpoint(Session(BUILT.library, BUILT.data, None).checkpoint(True))
    assert not any(p.data.any() for p in bare.parameters)


# ------------------------------------------------------------------------------------------------------ calls


def inputs_of(session: Session, graph: int) -> list[int]:
    return [found.value.data or 0 for found in session._listed(2 * graph)]


def test_inputs_are_only_bound_while_a_graph_runs(session: Session) -> None:
    for graph, batch in ((TRAIN, CASE.batch(0)), (EVAL, CASE.eval_batch())):
        session.run(graph, batch)
        assert inputs_of(session, graph) == [0] * len(batch)
        refusal(lambda g=graph, b=batch: session.run(g, [*b[:1], b[1][..., None]]))
        assert inputs_of(session, graph) == [0] * len(batch)


def test_an_input_without_data_is_refused(session: Session) -> None:
    tensors = (c_api.CTensor * 2)(*(c_api.to_tensor(x) for x in CASE.batch(0)))
    for number in range(2):
        kept, tensors[number].data = tensors[number].data, None
        assert session.library.run(session._session, TRAIN, tensors, 2) == BAD_SHAPE
        tensors[number].data = kept
    assert session.library.run(session._session, TRAIN, tensors, 2) == 0


def test_the_first_wrong_number_of_an_input_is_named(session: Session) -> None:
    images, labels = CASE.batch(0)
    with pytest.raises(TrainerError, match="expected 1 as number 1 of type, rank, dimensions"):
        session.run(TRAIN, [images.astype(np.float64), labels])
    with pytest.raises(TrainerError, match=f"expected {images.ndim} as number 2 of"):
        session.run(TRAIN, [images[..., None], labels])
    last = np.concatenate([images, images[..., :1]], -1)
    with pytest.raises(TrainerError, match=f"expected {images.shape[-1]} as number {2 + images.ndim} of"):
        session.run(TRAIN, [last, labels])


def test_only_training_ends_the_replacing_of_gradients(session: Session) -> None:
    session.run(TRAIN, CASE.batch(0))
    once = {n: session.gradient(n).copy() for n in session.parameters if session.gradient(n) is not None}
    session.lazy_reset_grad()
    session.run(EVAL, CASE.eval_batch())
    session.learning_rate = 0
    session.optimizer_step()
    refusal(lambda: session.run(TRAIN, []))
    assert session._session.contents.replaces_gradients
    fresh = BUILT.session(CASE.checkpoint)
    fresh.run(TRAIN, CASE.batch(0))
    assert all(np.array_equal(fresh.gradient(n), once[n]) for n in once)
    fresh.run(TRAIN, CASE.batch(0))  # adds
    assert not fresh._session.contents.replaces_gradients
    assert any(not np.array_equal(fresh.gradient(n), once[n]) for n in once)


def test_steps_are_counted_where_they_are_taken(session: Session) -> None:
    session.run(TRAIN, CASE.batch(0))
    session.run(EVAL, CASE.eval_batch())
    assert session.step_count == 0
    for count in (1, 2):
        session.optimizer_step()
        assert session.step_count == count
    refusal(lambda: session.run(OPTIMIZE, [np.zeros(1, np.float32)]))
    assert session.step_count == 2


def test_steps_are_counted_without_rollback_too(tmp_path: Path) -> None:
    """An optimizer step fails when it is under way, too: in a plan with an argument of another type."""
    bare = built(tmp_path, safety=BUILT.contents.safety - {ROLLBACK})
    tables = decode(plan_schema(), BUILT.data)
    tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in tables.items()}
    last = tables["steps"][int(tables["graphs"]["steps"][OPTIMIZE])]
    tables["tensors"]["type"][tables["args"][last["args"]]] = 6
    session = Session(bare, encode(plan_schema(), tables), None)
    assert refusal(session.optimizer_step).status == BAD_PLAN
    assert session.step_count == 0
    whole = Session(bare, BUILT.data, CASE.checkpoint)
    whole.run(TRAIN, CASE.batch(0))
    whole.optimizer_step()
    assert whole.step_count == 1
    refusal(lambda: whole.run(OPTIMIZE, [np.zeros(1, np.float32)]))
    assert whole.step_count == 1


def test_kinds_of_parameters(session: Session) -> None:
    kinds = {name: found.kind for name, found in session.parameters.items()}
    trained = {p.name for p in CASE.artifacts.checkpoint.parameters if p.trainable}
    state = {n for n in kinds if "running" in n or "mean" in n or "var" in n} - trained
    assert state and {n for n, k in kinds.items() if k == 1} == trained
    assert all(kinds[n] == 2 for n in state)
    frozen = trainer(GOLDEN / "transfer").session(load(GOLDEN / "transfer").checkpoint)
    assert 3 in {p.kind for p in frozen.parameters.values()}
    assert all(
        bool(p.gradient) == (p.kind == 1) for p in (*session.parameters.values(), *frozen.parameters.values())
    )


@pytest.mark.parametrize("off", [0, 1, 2**31])
def test_the_first_label_that_is_no_class_is_refused(off: int) -> None:
    case = load(GOLDEN / "dense")
    session = trainer(case.folder).session(case.checkpoint)
    images, labels = case.batch(0)
    (classes,) = session.parameter("fc2.bias").shape
    last = labels.copy()
    last[-1] = classes - 1
    session.run(TRAIN, [images, last])
    for wrong in (classes + off, -1 - off):
        last[-1] = wrong
        assert refusal(lambda: session.run(TRAIN, [images, last])).status == 7


def test_graphs_that_are_not_there_are_refused(session: Session) -> None:
    for graph in (3, 4, 7, 255, -1):
        assert refusal(lambda g=graph: session.run(g, [])).status == 9


def test_lists_end(session: Session) -> None:
    found = c_api.CParameter()
    for number in (-1, 5, 6, 7, 8, 100):
        assert session.library.get(session._session, number, 0, ctypes.byref(found)) == INVALID
    assert session.library.get(session._session, 4, len(session.parameters), ctypes.byref(found)) == INVALID
    assert [len(session.names(g, o)) for g in (TRAIN, EVAL) for o in (False, True)] == [2, 1, 2, 1]


def test_free_dimensions_of_inputs_are_minus_one(session: Session) -> None:
    images, labels = (found.value for found in session._listed(0))
    shape = CASE.batch(0)[0].shape
    assert list(images.dims[: images.rank]) == [-1, *shape[1:]] and list(labels.dims[: labels.rank]) == [-1]
    session.run(TRAIN, CASE.batch(0))
    assert all(-1 not in p.value.dims[: p.value.rank] for p in session.parameters.values())


def test_denormal_numbers_are_zero_for_the_time_of_a_call() -> None:
    case = load(GOLDEN / "dense")
    session = trainer(case.folder).session(
        case.checkpoint
    )  # AdamW: a moment is a tenth of the first gradient
    for value, kept in ((1e-40, False), (1e-30, True)):
        for name in session.parameters:
            session.gradient(name)[...] = np.float32(value)
        session.optimizer_step()
        (group,) = read_checkpoint(session.checkpoint(True)).groups
        assert all(moments["momentum0"].any() == kept for moments in group.moments.values())
        assert np.float32(1e-40) * np.ones(64, np.float32)[3] > 0, "the caller's arithmetic flushes them, too"
    images, labels = case.batch(0)
    refusal(lambda: session.run(TRAIN, [images, labels + 10**6]))
    assert np.float32(1e-40) * np.ones(64, np.float32)[3] > 0


# -------------------------------------------------------------------------------------------------- error texts


class Guarded(ctypes.Structure):
    _fields_ = (("options", c_api.COptions), ("after", ctypes.c_char * 64))


def named(name: bytes) -> Guarded:
    """The error of a checkpoint that lacks the first parameter, whose name in the plan this is."""
    tables = decode(plan_schema(), BUILT.data)
    tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in tables.items()}
    tables["parameters"]["name"][0] = len(tables["names"])
    tables["names"] = np.concatenate([tables["names"], np.frombuffer(name + b"\0", np.uint8)])
    plan, checkpoint = aligned_copy(encode(plan_schema(), tables)), aligned_copy(CASE.checkpoint)
    guarded, made = Guarded(), ctypes.POINTER(c_api.CSession)()
    ctypes.memset(ctypes.addressof(guarded) + Guarded.after.offset, 0xEE, 64)
    given = (plan.ctypes.data, plan.nbytes, checkpoint.ctypes.data, checkpoint.nbytes)
    assert BUILT.library.create(*given, ctypes.byref(guarded.options), ctypes.byref(made)) == BAD_CHECKPOINT
    assert not made
    return guarded


@pytest.mark.parametrize("length", [1, 60, 100, 140, 159, 160, 161, 1000])
def test_error_texts_end_within_their_room(length: int) -> None:
    """A name of the plan, however long, in the 160 bytes of the options."""
    before, behind = named(b"@").options.error.split(b"@")
    guarded = named(b"n" * length)
    found, whole = guarded.options.error, before + b"n" * length + behind
    assert whole.startswith(found) and len(found) >= min(len(whole), 158) and len(before) > 10 < len(behind)
    after = ctypes.string_at(ctypes.addressof(guarded) + Guarded.after.offset, 64)
    assert after == b"\xee" * 64
