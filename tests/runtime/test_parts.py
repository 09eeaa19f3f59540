"""Parts of the device library that are there only if asked for: properties, buffers, export."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import onnx
import pytest
from case_sets import (
    GOLDEN,
    TRAIN,
    load,
    trainer,
)
from onnx.reference import ReferenceEvaluator
from places import TESTS
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ir import Checkpoint
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import with_compact_checkpoint
from minbuild.planning.inference_export import inference
from minbuild.planning.library_contents import COMPONENTS, PROPERTY_BYTES
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.toolchain import build_library, build_program, find_toolchain, host_target
from minbuild.training.library import Library, Session, TrainerError

RESIDUAL = GOLDEN / "residual"  # has running statistics between trained parameters
LEARNING_RATE = "minbuild.learning_rate"


def sources(*parts: str) -> dict[str, bytes]:
    return dict(emit_sources(replace(trainer(RESIDUAL).contents, components=frozenset(parts)), registry()))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    """With all parts."""
    path = tmp_path_factory.mktemp("parts") / "all.so"
    path.write_bytes(shared_library(sources(*COMPONENTS)))
    return Library(path)


@pytest.fixture
def session(library) -> Session:
    return Session(library, trainer(RESIDUAL).data, load(RESIDUAL).checkpoint)


def test_parts_cost_nothing_where_they_are_not_asked_for():
    plain = trainer(RESIDUAL).path.read_bytes()
    assert (
        b"mb_set_property" not in plain and b"mb_export" not in plain and b"mb_parameter_buffer" not in plain
    )
    session = trainer(RESIDUAL).session(load(RESIDUAL).checkpoint)
    for call in (session.properties, lambda: session.buffer(True), lambda: session.export(b"")):
        with pytest.raises(TrainerError, match="Reduce again with --with"):
            call()


@pytest.mark.parametrize("part", COMPONENTS)
def test_every_part_works_alone(part, tmp_path):
    (tmp_path / "one.so").write_bytes(shared_library(sources(part)))
    session = Session(Library(tmp_path / "one.so"), trainer(RESIDUAL).data, load(RESIDUAL).checkpoint)
    session.run(TRAIN, load(RESIDUAL).batch(0))
    again = read_checkpoint(session.checkpoint(True))
    assert len(again.parameters) == len(load(RESIDUAL).artifacts.checkpoint.parameters)


# ------------------------------------------------------------------------------------------------- properties


def test_properties_of_every_type_survive_saving_and_loading(library, session):
    wanted = {
        "epoch": -(2**40),
        "loss": 0.5,
        "note": "halfway — 半分",
        "none": "",
        "zero": 0,
        "": 7,
        "long": 2**40 + 3,
    }
    for name, value in wanted.items():
        session.set_property(name, value)
    assert session.properties() == wanted
    session.set_property("epoch", "now a text")  # of another type and size
    session.set_property("loss", None)
    session.set_property("nobody", None)
    wanted = {**wanted, "epoch": "now a text"}
    del wanted["loss"]
    assert session.properties() == wanted
    data = session.checkpoint(False)
    saved = dict(read_checkpoint(data).properties)
    assert saved.pop(LEARNING_RATE) == pytest.approx(0.001) and saved == wanted
    again = Session(library, trainer(RESIDUAL).data, data).properties()
    assert {n: v for n, v in again.items() if n != LEARNING_RATE} == wanted


def test_the_learning_rate_survives_reloading(library, session):
    session.learning_rate = 0.25
    data = session.checkpoint(True)
    assert Session(library, trainer(RESIDUAL).data, data).learning_rate == 0.25
    session.learning_rate = 0.5
    session.load(data)
    assert session.learning_rate == 0.25
    bare = trainer(RESIDUAL)
    assert Session(bare.library, bare.data, data).learning_rate == 0.25  # without the part as well


def test_properties_without_room_change_nothing(library, session):
    session.set_property("kept", 1)
    with pytest.raises(TrainerError, match=f"room for {PROPERTY_BYTES} bytes"):
        session.set_property("long", "x" * PROPERTY_BYTES)
    held = replace(load(RESIDUAL).artifacts.checkpoint, properties={"long": "x" * PROPERTY_BYTES})
    before = session.buffer(False)
    with pytest.raises(TrainerError, match="room for"):
        session.load(write_checkpoint(held))
    assert session.properties() == {"kept": 1} and np.array_equal(session.buffer(False), before)


def test_damaged_properties_never_crash(library):
    """Any byte of the properties may be anything."""
    held = replace(load(RESIDUAL).artifacts.checkpoint, properties={"a": 1, "b": 2.0, "c": "text"})
    data = bytearray(write_checkpoint(held))
    session, random = Session(library, trainer(RESIDUAL).data, bytes(data)), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for at in random.integers(0, 400, 3):
            damaged[at] = random.integers(256)
        try:
            session.load(bytes(damaged))
        except TrainerError:
            continue
        assert isinstance(session.library.get_property, object)


# ---------------------------------------------------------------------------------------------------- buffers


def test_buffers_are_in_the_order_of_the_training_graph(session):
    order = [n for n in load(RESIDUAL).artifacts.training.inputs if n in load(RESIDUAL).parameters]
    held = {p.name: p for p in load(RESIDUAL).artifacts.checkpoint.parameters}
    everything = np.concatenate([held[n].data.ravel() for n in order])
    trained = np.concatenate([held[n].data.ravel() for n in order if held[n].trainable])
    assert 0 < trained.size < everything.size
    np.testing.assert_array_equal(session.buffer(False), everything)
    np.testing.assert_array_equal(session.buffer(True), trained)
    session.fill(np.arange(trained.size), trainable_only=True)
    np.testing.assert_array_equal(session.buffer(True), np.arange(trained.size))
    session.fill(everything, trainable_only=False)
    np.testing.assert_array_equal(session.buffer(False), everything)
    with pytest.raises(TrainerError, match=f"have {trained.size} elements"):
        session.fill(everything, trainable_only=True)


def nominal_state(library: Library) -> Session:
    """A session whose parameters have places but no values yet."""
    nominal = Checkpoint(load(RESIDUAL).artifacts.checkpoint.parameters, nominal=True)
    artifacts = replace(load(RESIDUAL).artifacts, checkpoint=nominal)
    plan = build_plan(optimize(lower(artifacts, registry(), {}), registry()), registry())
    return Session(library, encode_plan(plan, dict.fromkeys(plan.symbols, 32)), write_checkpoint(nominal))


def test_a_nominal_state_trains_once_a_buffer_filled_it(library, session, tmp_path):
    state = nominal_state(library)
    for early in (
        lambda: state.run(TRAIN, load(RESIDUAL).batch(0)),
        lambda: state.checkpoint(True),
        lambda: state.save(tmp_path / "saved", True),
        lambda: state.export(b""),
        lambda: state.buffer(True),
        lambda: state.fill(session.buffer(True), trainable_only=True),
    ):
        with pytest.raises(TrainerError, match="bad checkpoint: the state is nominal"):
            early()
    assert not list(tmp_path.iterdir())
    state.fill(session.buffer(False), trainable_only=False)
    for _ in range(2):
        loss, wanted = state.run(TRAIN, load(RESIDUAL).batch(0)), session.run(TRAIN, load(RESIDUAL).batch(0))
        np.testing.assert_array_equal(loss[0], wanted[0])
        state.optimizer_step()
        session.optimizer_step()
    np.testing.assert_array_equal(state.buffer(False), session.buffer(False))
    assert not read_checkpoint(state.checkpoint(True)).nominal


def test_a_refused_checkpoint_leaves_a_nominal_state_nominal(library):
    held, state = load(RESIDUAL).artifacts.checkpoint, nominal_state(library)
    with pytest.raises(TrainerError, match=f"lacks {held.parameters[0].name}"):
        state.load(write_checkpoint(Checkpoint(held.parameters[1:])))
    with pytest.raises(TrainerError, match="bad checkpoint: the state is nominal"):
        state.run(TRAIN, load(RESIDUAL).batch(0))
    state.load(load(RESIDUAL).checkpoint)
    state.run(TRAIN, load(RESIDUAL).batch(0))


def test_a_nominal_state_trains_once_a_compact_checkpoint_is_loaded(tmp_path):
    contents = replace(
        trainer(RESIDUAL).contents, components=frozenset({"buffers"}), compact_checkpoints=True
    )
    (tmp_path / "library").write_bytes(shared_library(dict(emit_sources(contents, registry()))))
    state = nominal_state(Library(tmp_path / "library"))
    state.load(with_compact_checkpoint(compile_model(RESIDUAL, {}, {})).compact_checkpoint)
    loss = state.run(TRAIN, load(RESIDUAL).batch(0))
    wanted = trainer(RESIDUAL).session(load(RESIDUAL).checkpoint).run(TRAIN, load(RESIDUAL).batch(0))
    np.testing.assert_array_equal(loss[0], wanted[0])


def test_a_nominal_checkpoint_of_another_model_is_refused(library):
    held = load(RESIDUAL).artifacts.checkpoint
    other = write_checkpoint(Checkpoint(held.parameters[1:], nominal=True))
    with pytest.raises(TrainerError, match=f"lacks {held.parameters[0].name}"):
        Session(library, trainer(RESIDUAL).data, other)


# ----------------------------------------------------------------------------------------------------- export


def template_of() -> tuple[bytes, tuple[str, ...]]:
    made = inference(
        load(RESIDUAL).artifacts,
        lower(load(RESIDUAL).artifacts, registry(), {}),
        held={p.name for p in trainer(RESIDUAL).plan.parameters},
    )
    sizes = {p.name: p.data.nbytes for p in load(RESIDUAL).artifacts.checkpoint.parameters}
    return made.template(trainer(RESIDUAL).plan.parameters, sizes), made.outputs


def test_the_exported_model_computes_what_was_trained(session, tmp_path):
    template, outputs = template_of()
    for step in range(3):
        session.run(TRAIN, load(RESIDUAL).batch(step))
        session.optimizer_step()
    data = session.export(template)
    (tmp_path / "template").write_bytes(template)
    session.export_to(tmp_path / "template", tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == data
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in model.graph.output] == list(outputs) == ["output"]
    found = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    for name in set(found) & set(session.parameters):
        np.testing.assert_array_equal(found[name], session.parameter(name))
    assert set(load(RESIDUAL).meta["requires_grad"]) <= set(found)
    (scores,) = ReferenceEvaluator(model).run(
        None, dict(zip((i.name for i in model.graph.input), load(RESIDUAL).eval_batch(), strict=False))
    )
    assert len(scores) == len(load(RESIDUAL).eval_batch()[0]) and np.isfinite(scores).all()


def test_damaged_export_templates_are_refused(session, tmp_path):
    template, _ = template_of()
    damaged = [
        b"",
        b"MBIM",
        template[:-1],
        template + b"x",
        b"X" + template[1:],
        template[:8] + b"\xff" * 8 + template[16:],
    ]
    for wrong in damaged:
        with pytest.raises(TrainerError, match="not an intact export template"):
            session.export(wrong)
    (tmp_path / "template").write_bytes(template[:-1])
    with pytest.raises(TrainerError, match="not an intact export template"):
        session.export_to(tmp_path / "template", tmp_path / "model.onnx")
    with pytest.raises(TrainerError, match="cannot read"):
        session.export_to(tmp_path / "nothing", tmp_path / "model.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["template"]


# ------------------------------------------------------------------------------------------------------------- in C


def test_all_of_the_header_works_in_c(tmp_path):
    built = build_library(sources(*COMPONENTS), host_target(), find_toolchain())
    given = {
        "parts.c": (TESTS / "support/parts.c").read_bytes(),
        "include/minbuild/trainer.h": sources()["include/minbuild/trainer.h"],
    }
    program = tmp_path / "parts"
    program.write_bytes(build_program(given, built.archive, host_target(), find_toolchain()))
    program.chmod(0o755)
    contents = {
        "plan": trainer(RESIDUAL).data,
        "checkpoint": load(RESIDUAL).checkpoint,
        "template": template_of()[0],
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in contents]
    name, out = load(RESIDUAL).meta["requires_grad"][0], tmp_path / "model.onnx"
    done = subprocess.run([program, *paths, name, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    onnx.checker.check_model(onnx.load(out), full_check=True)
