"""Checkpoints are whole, and of this model, or refused; training goes on from one as if it had not stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from case_sets import GOLDEN, SHARED, TRAIN, CaseSet, Trainer, folders, load, loaded, persistent, trainer
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ir import fingerprint_of
from minbuild.ops import registry
from minbuild.planning.library_contents import CHECKSUMS, FINGERPRINT
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import Session, TrainerError

BAD_CHECKPOINT = 4


def trained(name: str = "dense", steps: int = 2) -> Session:
    case = load(GOLDEN / name)
    session = trainer(GOLDEN / name).session(case.checkpoint)
    for step in range(steps):
        train(session, case, step)
    return session


def train(session: Session, case: CaseSet, step: int) -> None:
    session.lazy_reset_grad()
    session.run(TRAIN, case.batch(step))
    session.optimizer_step()


def without(built: Trainer, *names: str) -> Trainer:
    """The trainer built without some of its safe defaults."""
    bare = replace(built.contents, safety=built.contents.safety - {*names})
    library = shared_library(emit_sources(bare, registry()))
    return replace(built, library=loaded(library)[1], contents=bare)


def state(session: Session, built: Trainer) -> bytes:
    """All that persists but gradients, which are not saved."""
    memory, size = persistent(session, built), built.plan.trainable_bytes
    return memory[:size] + memory[2 * size :]


# ------------------------------------------------------------------------------------------------------ damage


def test_every_flipped_bit_is_refused():
    session = trained()
    data = session.checkpoint(True)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TrainerError) as error:
            session.load(bytes(damaged))
        assert error.value.status == BAD_CHECKPOINT
    assert session.checkpoint(True) == data


def test_python_refuses_what_the_device_refuses():
    data = trained().checkpoint(True)
    random = np.random.default_rng(0)
    for bit in random.integers(0, 8 * len(data), 1000):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << int(bit) % 8
        try:  # the last 4 bytes depend on the model, which is not known here
            assert (
                read_checkpoint(bytes(damaged)).seal != read_checkpoint(data).seal
                and bit // 8 >= len(data) - 4
            )
        except BadInput as error:
            assert "checkpoint: " in str(error)


@pytest.mark.parametrize("size", [1, 64, 512, 4096])
@pytest.mark.parametrize("name", ["dense", "residual", "transfer"])
def test_zeroed_and_missing_pieces_are_refused(name, size):
    session = trained(name)
    data = session.checkpoint(True)
    for start in range(0, len(data), max(size, len(data) // 500)):
        piece = data[start : start + size]
        zeroed = data[:start] + bytes(len(piece)) + data[start + size :]
        for damaged in (zeroed, data[:start]):
            if damaged != data:
                with pytest.raises(TrainerError, match="bad checkpoint"):
                    session.load(damaged)
    assert session.checkpoint(True) == data


def test_swapped_pages_are_refused():
    """The sum of all bytes stays; the second sum depends on the order."""
    session = trained("residual")
    data = session.checkpoint(True)
    swapped = data[:1024] + data[1536:2048] + data[1024:1536] + data[2048:]
    assert swapped != data
    with pytest.raises(TrainerError, match="bad checkpoint"):
        session.load(swapped)


def test_onnx_runtimes_own_checkpoints_stay_welcome():
    case = load(GOLDEN / "dense")
    session = trainer(GOLDEN / "dense").session(case.checkpoint)
    session.load((case.folder / "checkpoint_final_opt").read_bytes())
    assert session.step_count == case.meta["steps"]
    assert read_checkpoint(case.checkpoint).seal is None


# ------------------------------------------------------------------------------------------------------ resuming


DROPOUT = [p for p in (SHARED / "bert_tiny_dropout",) if p.is_dir()]


@pytest.mark.parametrize("folder", [*folders(), *DROPOUT], ids=lambda p: p.name)
def test_training_goes_on_as_if_it_had_not_stopped(folder):
    """With the learning rate and the random numbers of Dropout, and nothing set by the program."""
    case, built = load(folder), trainer(folder)
    if not case.artifacts.optimizer:
        pytest.skip("nothing that is updated")
    one, other = built.session(case.checkpoint), built.session(case.checkpoint)
    one.learning_rate, one.seed = 0.0123, 77
    train(one, case, 0)
    saved = one.checkpoint(True)
    fresh = [built.session(data) for data in (saved, write_checkpoint(read_checkpoint(saved)))]
    other.load(saved)
    train(one, case, 1)
    for session in (other, *fresh):
        train(session, case, 1)
        assert state(session, built) == state(one, built)


def test_a_checkpoint_without_optimizer_state_leaves_progress_alone():
    session = trained()
    session.learning_rate = 0.5
    session.load(trained("dense", 1).checkpoint(False))
    assert session.step_count == 2 and session.learning_rate == 0.5


# ------------------------------------------------------------------------------------------------------ other models


def renamed(built: Trainer, fingerprint: int) -> Trainer:
    """The same trainer for what calls itself another model."""
    plan = replace(built.plan, fingerprint=fingerprint)
    return replace(built, plan=plan, data=encode_plan(plan, dict.fromkeys(plan.symbols, 32)))


def test_a_checkpoint_of_another_model_is_refused_unless_it_is_accepted():
    session = trained()
    saved = session.checkpoint(True)
    built = renamed(trainer(GOLDEN / "dense"), 0x12345678)
    other = built.session(load(GOLDEN / "dense").checkpoint)
    before = other.checkpoint(True)
    with pytest.raises(TrainerError, match="bad checkpoint: checkpoint of another model"):
        other.load(saved)
    assert other.checkpoint(True) == before
    with pytest.raises(TrainerError, match="checkpoint of another model"):
        Session(built.library, built.data, saved)
    other.load(saved, accept_any=True)
    with pytest.raises(TrainerError, match="checkpoint of another model"):
        other.load(saved)  # the flag was for one call
    created = Session(built.library, built.data, saved, accept_any=True)
    for found in (other, created):
        assert found.step_count == 2
        for name in session.parameters:
            assert np.array_equal(found.parameter(name), session.parameter(name))
    damaged = bytearray(saved)
    damaged[len(saved) // 2] ^= 4
    with pytest.raises(TrainerError, match="not an intact"):
        other.load(bytes(damaged), accept_any=True)


def test_a_library_may_accept_checkpoints_of_any_model():
    saved = trained().checkpoint(True)
    built = without(renamed(trainer(GOLDEN / "dense"), 0x12345678), FINGERPRINT)
    session = Session(built.library, built.data, saved)
    assert session.step_count == 2
    damaged = bytearray(saved)
    damaged[len(saved) // 2] ^= 4
    with pytest.raises(TrainerError, match="not an intact"):
        session.load(bytes(damaged))


def test_a_library_without_checks_reads_and_writes_plain_checkpoints():
    saved, built = trained().checkpoint(True), without(trainer(GOLDEN / "dense"), CHECKSUMS, FINGERPRINT)
    session = Session(built.library, built.data, saved)
    plain = session.checkpoint(True)
    assert session.step_count == 2 and read_checkpoint(plain).seal is None and len(plain) < len(saved)
    trained().load(plain)


def test_fingerprints_tell_models_apart_and_nothing_else():
    same = fingerprint_of(load(GOLDEN / "dense").artifacts)
    assert same == fingerprint_of(load(GOLDEN / "dense_fixed").artifacts), (
        "the batch size is no part of a model"
    )
    artifacts = load(GOLDEN / "dense").artifacts
    nodes = artifacts.training.nodes
    backwards = replace(
        artifacts, optimizer=None, evaluation=None, training=replace(artifacts.training, source="x")
    )
    assert fingerprint_of(backwards) == same
    at = next(i for i, node in enumerate(nodes) if node.op_type == "Relu")
    tanh = (*nodes[:at], replace(nodes[at], op_type="Tanh"), *nodes[at + 1 :])
    assert fingerprint_of(replace(artifacts, training=replace(artifacts.training, nodes=tanh))) != same
    swapped = tuple(
        replace(n, attributes={**n.attributes, "transB": 1 - n.attributes.get("transB", 0)})
        if n.op_type == "Gemm"
        else n
        for n in nodes
    )
    assert fingerprint_of(replace(artifacts, training=replace(artifacts.training, nodes=swapped))) != same
    every = {folder.name: fingerprint_of(load(folder).artifacts) for folder in folders()}
    assert len({*every.values()}) > len(every) // 2
