"""Checkpoints, templates and properties of a session: what is written, what is refused, and what is left in place."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, load, trainer
from sessions import built, refusal

from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.checkpoint import schema as checkpoint_schema
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.library_contents import COMPONENTS, PROPERTY_BYTES
from minbuild.training import c_api
from minbuild.training.library import Library, Session, aligned_copy

CASE, BUILT = load(GOLDEN / "residual"), trainer(GOLDEN / "residual")
INVALID, BAD_PLAN, BAD_CHECKPOINT, OUT_OF_MEMORY, BAD_SHAPE, IO = 1, 2, 4, 5, 6, 8
FROZEN = 3  # MB_FROZEN


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library with all parts."""
    return built(tmp_path_factory.mktemp("everything"), components=frozenset(COMPONENTS))


@pytest.mark.parametrize(
    "change", [lambda name: name[:-1], lambda name: name + "x", lambda name: "x" + name[1:]]
)
def test_names_are_compared_to_the_end(session: Session, change: object) -> None:
    root = decode(checkpoint_schema(), CASE.checkpoint)
    for list_ in ("trainable", "frozen"):
        tensor = root["module"][list_][0]
        kept, tensor["name"] = tensor["name"], change(tensor["name"])  # type: ignore[operator]
        assert refusal(lambda: session.load(encode(checkpoint_schema(), root))).status == BAD_CHECKPOINT
        tensor["name"] = kept


def test_frozen_parameters_are_those_of_the_checkpoint_that_was_loaded() -> None:
    """They are read from it in place. An array from before has the memory of the checkpoint before."""
    case, root = load(GOLDEN / "transfer"), decode(checkpoint_schema(), load(GOLDEN / "transfer").checkpoint)
    session = trainer(GOLDEN / "transfer").session(case.checkpoint)
    before = {name: session.parameter(name) for name, p in session.parameters.items() if p.kind == FROZEN}
    kept = {name: array.copy() for name, array in before.items()}
    for tensor in (t for t in root["module"]["frozen"] if t["name"] in before):
        tensor["data"] = (kept[tensor["name"]] + np.float32(1)).tobytes()
    session.load(encode(checkpoint_schema(), root))
    assert len(before) > 3
    for name, array in before.items():
        np.testing.assert_array_equal(array, kept[name])
        np.testing.assert_array_equal(session.parameter(name), kept[name] + np.float32(1))


@pytest.mark.parametrize("size", [0, 64])
def test_no_checkpoint_is_refused_as_one_of_no_bytes(session: Session, size: int) -> None:
    """As bindings hand over the bytes of an empty file: null, which only a new session may have."""
    assert session.library.load_checkpoint(session._session, None, size) == BAD_CHECKPOINT
    assert session._session.contents.error == b"not an intact, aligned checkpoint of version 2"


def test_a_sink_that_fails_stops_the_writing(session: Session, everything: Library) -> None:
    sizes: list[int] = []

    def counting(fails: int) -> object:
        sizes.clear()

        def sink(_: int, data: int, size: int) -> int:
            sizes.append(size)
            return int(len(sizes) == fails)

        return c_api.SINK(sink)

    whole = counting(-1)
    assert session.library.write_checkpoint(session._session, 1, whole, None) == 0
    calls = len(sizes)
    assert sum(sizes) == len(session.checkpoint(True)) and calls > 50 and 0 not in sizes
    for fails in (1, 2, calls // 2, calls):
        sink = counting(fails)
        assert session.library.write_checkpoint(session._session, 1, sink, None) == IO
        assert len(sizes) == fails, "it goes on after a failure"
    exporting = Session(everything, BUILT.data, CASE.checkpoint)
    template = template_of(exporting)
    for fails in (1, 2):
        data, sink = aligned_copy(template), counting(fails)
        assert everything.export_model(exporting._session, data.ctypes.data, data.nbytes, sink, None) == IO
        assert len(sizes) == fails


def template_of(session: Session, *pieces: tuple[bytes, int]) -> bytes:
    """An export template of pieces: some bytes, or the parameter of a number that counts from 1."""
    nbytes = [np.asarray(session.parameter(n)).nbytes for n in session.parameters]
    made = pieces or ((b"before", 0), (b"", 1), (b"between", 0), (b"", len(nbytes)))
    rows = b"".join(
        (nbytes[n - 1] if 0 < n <= len(nbytes) else len(data)).to_bytes(4, "little") + n.to_bytes(4, "little")
        for data, n in made
    )
    return b"MBIM" + len(made).to_bytes(4, "little") + rows + b"".join(data for data, _ in made)


def test_holes_of_a_template_are_the_parameters_of_their_numbers(everything: Library) -> None:
    session = Session(everything, BUILT.data, CASE.checkpoint)
    names = list(session.parameters)
    values = [session.parameter(n).tobytes() for n in names]
    assert session.export(template_of(session)) == b"before" + values[0] + b"between" + values[-1]
    for number in range(1, len(names) + 1):
        assert session.export(template_of(session, (b"", number))) == values[number - 1]


def test_templates_that_do_not_fit_are_refused(everything: Library) -> None:
    session = Session(everything, BUILT.data, CASE.checkpoint)
    good = template_of(session)
    count = len(session.parameters)
    bad = {
        "another kind of file": b"MBIN" + good[4:],
        "a byte too many": good + b"x",
        "a byte missing": good[:-1],
        "a number too large": template_of(session, (b"", count + 1)),
        "a piece more than there are": good[:4] + (5).to_bytes(4, "little") + good[8:],
        "more pieces than bytes": b"MBIM" + (2).to_bytes(4, "little") + bytes(8),
        "pieces in the head": b"MBIM" + (1).to_bytes(4, "little"),
        "far too many": b"MBIM" + (2**32 - 1).to_bytes(4, "little") + good[8:],
        "a parameter longer than it is": good[:16] + b"\xff\xff" + good[18:],
        "bytes beyond the end": good[:8] + (2**31).to_bytes(4, "little") + good[12:],
        "a length that wraps around, and one back to the end": b"MBIM"
        + (2).to_bytes(4, "little")
        + (2**32 - 8).to_bytes(8, "little")
        + (8).to_bytes(8, "little"),
        "nothing": b"",
    }
    for what, template in bad.items():
        error = refusal(lambda t=template: session.export(t))
        assert error.status == BAD_PLAN, what


def test_buffers_of_another_length_are_refused_and_nothing_moves(everything: Library) -> None:
    session = Session(everything, BUILT.data, CASE.checkpoint)
    for trainable_only in (True, False):
        count = session.buffer(trainable_only).size
        room = np.full(count + 8, 7, np.float32)
        for given in (0, 1, count - 1, count + 1, 2**40):
            for what in (1, 2):
                size = ctypes.c_size_t(given)
                status = everything.parameter_buffer(
                    session._session, int(trainable_only), what, room.ctypes.data, ctypes.byref(size)
                )
                assert status == INVALID and (room == 7).all()
    first, wanted = (
        read_checkpoint(session.checkpoint(False)).parameters[0],
        CASE.artifacts.checkpoint.parameters[0],
    )
    assert first.data.tobytes() == wanted.data.tobytes()


def test_properties_fill_their_room_to_the_end(everything: Library, tmp_path: Path) -> None:
    """A property takes 16 bytes, its name and its text with an end each, up to a multiple of 8."""
    most = PROPERTY_BYTES - 16 - len("name") - 2
    session = Session(everything, BUILT.data, CASE.checkpoint)
    for length in (most, most - 1, most - 8):
        session.set_property("name", "x" * length)
        assert session.properties() == {"name": "x" * length}
        assert read_checkpoint(session.checkpoint(False)).parameters if length < most - 40 else True
    for length in (most + 1, most + 8, most + 9):
        error = refusal(lambda n=length: session.set_property("name", "x" * n))
        assert error.status == OUT_OF_MEMORY and session.properties() == {"name": "x" * (most - 8)}
    session.set_property("name", None)
    assert session.properties() == {}
    each = 16 + 2 + 2 + 4
    for number in range(PROPERTY_BYTES // each):
        session.set_property(f"{number:02}", "1234")
    refusal(lambda: session.set_property("zz", 1))
    session.set_property("00", "4321")  # in its own place
    assert len(session.properties()) == PROPERTY_BYTES // each
    for refused in (session.checkpoint, lambda o: session.save(tmp_path / "saved", o)):
        assert refusal(lambda r=refused: r(False)).status == OUT_OF_MEMORY  # no room for the learning rate
    assert not list(tmp_path.iterdir())
    session.set_property("01", None)
    session.set_property("02", None)
    assert len(session.checkpoint(False)) > 0
