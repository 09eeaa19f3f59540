"""What the device writes into a checkpoint, byte for byte: everything once, and what a reader may rely on; and what it
takes from where there is no checkpoint, or one of other types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, load, trainer
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ir import ElementType
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.ops import registry
from minbuild.planning.library_contents import COMPONENTS
from minbuild.planning.plan_encoding import plan_schema
from minbuild.training.library import Library, Session, TrainerError

CASE, BUILT = load(GOLDEN / "residual"), trainer(GOLDEN / "residual")
BAD_CHECKPOINT = 4


@pytest.mark.parametrize("optimizer_state", [False, True])
def test_names_stand_where_they_belong_and_end_with_a_zero(optimizer_state: bool) -> None:
    """Once as a parameter, and once as the owner of moments; moments bring their own names."""
    session = BUILT.session(CASE.checkpoint)
    data = session.checkpoint(optimizer_state)
    for name in session.parameters:
        text = name.encode()
        known = len(text).to_bytes(4, "little") + text
        trained = session.gradient(name) is not None
        assert data.count(known) == 1 + (optimizer_state and trained), name
        at = data.find(known)
        while at >= 0:
            assert data[at + len(known)] == 0, name
            at = data.find(known, at + 1)
    moments = sum(len(m) for g in read_checkpoint(data).groups for m in g.moments.values())
    assert data.count(b"momentum") == (moments if optimizer_state else 0)
    assert data.count(b"group0") == optimizer_state


def test_frozen_weights_that_are_nowhere_are_asked_for() -> None:
    """Frozen weights are read in the checkpoint, where they are: without one there are none."""
    built = trainer(GOLDEN / "transfer")
    with pytest.raises(TrainerError, match="the checkpoint lacks stem.weight") as caught:
        Session(built.library, built.data, None)
    assert caught.value.status == BAD_CHECKPOINT


def test_only_floats_go_into_a_buffer(tmp_path: Path) -> None:
    contents = replace(BUILT.contents, components=frozenset(COMPONENTS))
    path = tmp_path / "library.so"
    path.write_bytes(shared_library(emit_sources(contents, registry())))
    held = read_checkpoint(CASE.checkpoint)
    first = held.parameters[0]
    whole = replace(first, element=ElementType.INT32, data=np.ascontiguousarray(first.data).view(np.int32))
    names = [p.name for p in BUILT.plan.parameters]
    schema = plan_schema()
    plan = decode(schema, BUILT.data)
    tensors = plan["tensors"].copy()
    tensors["type"][int(plan["parameters"]["tensor"][names.index(first.name)])] = ElementType.INT32
    session = Session(
        Library(path),
        encode(schema, {**plan, "tensors": tensors}),
        write_checkpoint(replace(held, parameters=(whole, *held.parameters[1:]), seal=None)),
    )
    with pytest.raises(TrainerError, match=f"{first.name}: only floats go into a buffer"):
        session.buffer(False)
