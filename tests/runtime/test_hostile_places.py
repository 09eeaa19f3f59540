"""Plans and templates whose numbers are out of range in ways that only one form of a library has."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, TRAIN, CaseSet, Trainer, load, loaded, trainer
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.ops import registry
from minbuild.planning.dense_file import DensePlan
from minbuild.planning.plan_encoding import EXPRESSIONS, encode_plan, plan_schema
from minbuild.training.library import Library, Session, TrainerError, aligned_copy, arena_size

BAD_PLAN = 2
RESIDUAL = GOLDEN / "residual"


@pytest.fixture(scope="module")
def case() -> CaseSet:
    return load(RESIDUAL)


def status(library: Library, plan: bytes, case: CaseSet) -> int:
    """The status of the first call that fails, of those that make a session and train; 0 if none does."""
    try:
        Session(library, plan, case.checkpoint).run(TRAIN, case.batch(0))
    except TrainerError as error:
        return error.status
    return 0


@pytest.mark.parametrize("beyond", [0, 1, 100, 60_000])
def test_inputs_of_a_dense_plan_beyond_its_ports_are_refused(beyond: int, case: CaseSet) -> None:
    """Where a table would have their places, the session has other tables, parameters, or no memory."""
    built = trainer(RESIDUAL, dense=2)
    plan = DensePlan.decode(built.data)
    graphs = plan.vectors["graphs"].copy()
    first_port = graphs.dtype.names[3]
    graphs[first_port][TRAIN] = plan.counts["ports"] + beyond
    plan.vectors["graphs"] = graphs
    size = arena_size(built.library, plan.encode())
    memory = aligned_copy(b"\xff" * (size + (1 << 21)))
    session = Session(built.library, plan.encode(), case.checkpoint, arena=memory[:size])
    before = {name: session.parameter(name).copy() for name in session.parameters}
    with pytest.raises(TrainerError):
        session.run(TRAIN, case.batch(0))
    assert (memory[size:] == 0xFF).all()
    for name, array in before.items():
        np.testing.assert_array_equal(session.parameter(name), array)


@pytest.fixture(scope="module")
def wide(case: CaseSet) -> Trainer:
    built = trainer(RESIDUAL)
    contents = replace(built.contents, wide=True)
    data = encode_plan(built.plan, dict.fromkeys(built.plan.symbols, 32), wide=True)
    made = Trainer(*loaded(shared_library(emit_sources(contents, registry()))), built.plan, data, contents)
    assert status(made.library, made.data, case) == 0
    return made


@pytest.mark.parametrize("region", [0, 1, 2, 4])
def test_places_of_a_wide_plan_before_their_region_are_refused(
    wide: Trainer, region: int, case: CaseSet
) -> None:
    """Minus four thousand million, and as many bytes from there on as lead beyond the region's begin."""
    tables = dict(decode(plan_schema(wide=True), wide.data))
    tensors, shapes, exprs = (tables[name].copy() for name in ("tensors", "shapes", "exprs"))
    constant = EXPRESSIONS.index("Constant")
    more = np.array([(-(2**32), 0, constant), (2**30, 0, constant)], exprs.dtype)
    found = np.flatnonzero((tensors["region"] == region) & (tensors["type"] == 1))
    assert found.size
    tensors["at"][found] = len(exprs)
    tensors["shape"][found] = len(shapes)
    tables |= {"tensors": tensors, "exprs": np.concatenate([exprs, more])}
    tables["shapes"] = np.concatenate([shapes, np.array([1, len(exprs) + 1, 0], shapes.dtype)])
    assert status(wide.library, encode(plan_schema(wide=True), tables), case) != 0


@pytest.mark.parametrize("bytes_", [2**64 - 128, 2**63, 2**47])
def test_bytes_to_restore_of_a_wide_plan_that_overflow_are_refused(
    wide: Trainer, bytes_: int, case: CaseSet
) -> None:
    """With few trained bytes the sum is small again where it is counted in 64 bits."""
    tables = dict(decode(plan_schema(wide=True), wide.data))
    for trained in (64, int(tables["trainable_bytes"])):
        changed = tables | {"trainable_bytes": trained, "rollback_bytes": bytes_}
        plan = encode(plan_schema(wide=True), changed)
        with pytest.raises(TrainerError):
            arena_size(wide.library, plan)
        assert status(wide.library, plan, case) == BAD_PLAN


@pytest.mark.parametrize("off", [0, 4])
def test_expressions_of_a_wide_plan_are_read_where_their_numbers_can_be(
    wide: Trainer, off: int, case: CaseSet
) -> None:
    """The same expressions once more behind the plan, from a multiple of 8 bytes on, and 4 bytes further."""
    plan, (root,) = bytearray(wide.data), struct.unpack_from("<I", wide.data)
    (to_slots,) = struct.unpack_from("<i", plan, root)
    names = [field.name for field in plan_schema(wide=True).tables["Trainer"].fields]
    (to_field,) = struct.unpack_from("<H", plan, root - to_slots + 4 + 2 * names.index("exprs"))
    field = root + to_field
    (to_vector,) = struct.unpack_from("<I", plan, field)
    (count,) = struct.unpack_from("<I", plan, field + to_vector)
    vector = bytes(plan[field + to_vector :][: 4 + 16 * count])
    plan += bytes(-len(plan) % 8 + 4 + off)
    struct.pack_into("<I", plan, field, len(plan) - field)
    assert status(wide.library, bytes(plan) + vector, case) == (BAD_PLAN if off else 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("number", [0x40000000, 0xFFFFFFFF, 0x7FFFFFFF])
def test_templates_with_parameters_that_are_not_there_are_refused(
    compiled: bool, number: int, case: CaseSet, tmp_path: Path
) -> None:
    built = trainer(RESIDUAL)
    contents = replace(built.contents, components=frozenset({"export"}))
    contents = replace(contents, compiled_plan=built.data if compiled else None)
    _, library = loaded(shared_library(emit_sources(contents, registry())))
    session = Session(library, b"" if compiled else built.data, case.checkpoint)
    words = b"".join(n.to_bytes(4, "little") for n in (1, 4, number))
    with pytest.raises(TrainerError, match="not an intact export template"):
        session.export(b"MBIM" + words)
