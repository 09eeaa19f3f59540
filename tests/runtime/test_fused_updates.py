"""`--updates fused`: training steps that update parameters compute the bits of a training step and an optimizer step,
store no gradients, and end for good at a gradient that is not finite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import SHARED, Trainer, load, loaded, trainer
from places import GOLDEN
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput, Unsupported
from minbuild.ir import Role
from minbuild.ops import registry
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.fuse_updates import fuse_updates
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.rollback import check_refusals
from minbuild.training.library import EVAL, TRAIN, TRAIN_AND_UPDATE, Session, TrainerError

OPTIMIZER = 2
SETS = ("mlp", "mlp_sgd", "cnn_bn", "lstm_cls", "bert_tiny")
BAD_VALUE, BAD_CHECKPOINT, UNSUPPORTED = 7, 4, 9


def folder_of(name: str) -> Path:
    folder = next((f for f in (GOLDEN / name, SHARED / name) if (f / "meta.json").is_file()), None)
    return folder or pytest.skip(f"the set {name} is not here")


def fused(folder: Path, **options: bool) -> tuple[CompiledModel, Trainer]:
    """The trimmed trainer of a set with fused updates; `options` of the library's contents."""
    model = compile_model(folder, {}, {}, options=PlanOptions(updates=Updates(fused=True)))
    contents = contents_of([model])
    if options.pop("compiled", False):
        contents = replace(contents, compiled_plan=model.plan_bytes)
    contents = replace(contents, **options)
    library = shared_library(emit_sources(contents, model.registry))
    data = b"" if contents.compiled else model.plan_bytes
    return model, Trainer(*loaded(library), model.plan, data, contents)


def state(session: Session) -> dict[str, bytes]:
    return {name: session.parameter(name).tobytes() for name in session.parameters}


def batches(folder: Path) -> list[list[np.ndarray]]:
    """Batches of several sizes, where they may be."""
    case = load(folder)
    sizes = [case.batch(0), case.batch(1)]
    return sizes if case.fixed else [*sizes, case.samples(3), case.samples(1), case.batch(1)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_the_bits_are_those_of_two_calls(name, compiled):
    folder = folder_of(name)
    case, two = load(folder), trainer(folder)
    model, one = fused(folder, compiled=compiled)
    ours, theirs = one.session(case.checkpoint), two.session(case.checkpoint)
    ours.learning_rate = theirs.learning_rate = 0.01
    for batch in batches(folder):
        outputs = ours.run(TRAIN_AND_UPDATE, batch)
        expected = theirs.run(TRAIN, batch)
        theirs.optimizer_step()
        theirs.lazy_reset_grad()
        assert [x.tobytes() for x in outputs] == [x.tobytes() for x in expected]
        assert state(ours) == state(theirs)
    assert (
        ours.checkpoint(True)[:-64] == theirs.checkpoint(True)[:-64]
    )  # but for the fingerprint of the model
    assert ours.step_count == theirs.step_count == len(batches(folder))
    assert all(ours.gradient(n) is None for n in ours.parameters)
    assert sum(ours.is_trained(n) for n in ours.parameters) == sum(
        theirs.is_trained(n) for n in theirs.parameters
    )


def test_no_gradients_are_stored():
    """Parameters and two moments persist; a gradient is in the arena until its update."""
    folder = folder_of("lenet")
    plan, two = (
        compile_model(folder, {}, {}, options=PlanOptions(updates=Updates(fused=True))).plan,
        trainer(folder).plan,
    )
    assert two.persistent_bytes - plan.persistent_bytes == plan.trainable_bytes
    assert plan.moments == 2 and plan.gradient_bytes == 0
    (train,) = [r for r in plan.routines if r.name == "train"]
    updates = [i for i, s in enumerate(train.steps) if plan.kernels[s.kernel].function == "adamw"]
    trained = [p for p in plan.parameters if p.role is Role.PARAMETER]
    assert len(updates) == len(trained)
    assert updates[0] < len(train.steps) // 2, (
        "the last layer is updated before the first one's gradient is computed"
    )


def test_other_calls_are_refused():
    folder = folder_of("mlp")
    _, one = fused(folder)
    case = load(folder)
    session, two = one.session(case.checkpoint), trainer(folder).session(case.checkpoint)
    before = state(session)
    for refused in (lambda: session.run(TRAIN, case.batch(0)), session.optimizer_step):
        with pytest.raises(TrainerError, match="no such graph: to train, call train and update") as error:
            refused()
        assert error.value.status == UNSUPPORTED
    with pytest.raises(TrainerError, match="no such graph$"):
        two.run(TRAIN_AND_UPDATE, case.batch(0))
    assert state(session) == before and session.step_count == 0
    assert session.names(TRAIN_AND_UPDATE, outputs=False) == case.inputs


def test_a_refused_batch_or_rate_changes_nothing():
    folder = folder_of("mlp")
    _, one = fused(folder)
    case = load(folder)
    session = one.session(case.checkpoint)
    session.run(TRAIN_AND_UPDATE, case.batch(0))
    before, steps = session.checkpoint(True), session.step_count
    images, labels = case.batch(1)
    wrong = labels.copy()
    wrong[-1] = 10
    for batch in ([images, wrong], [images[:, :-1], labels], [images]):
        with pytest.raises(TrainerError):
            session.run(TRAIN_AND_UPDATE, batch)
        assert session.checkpoint(True) == before
    session._session.contents.progress.contents.learning_rate = np.nan
    with pytest.raises(TrainerError, match="not finite: learning rate"):
        session.run(TRAIN_AND_UPDATE, case.batch(1))
    session.learning_rate = 0.001
    assert session.checkpoint(True) == before
    session.run(TRAIN_AND_UPDATE, case.batch(1))
    assert session.step_count == steps + 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_ends_the_session(value, compiled, tmp_path):
    folder = folder_of("mlp")
    _, one = fused(folder, compiled=compiled)
    case = load(folder)
    session, other = one.session(case.checkpoint), one.session(case.checkpoint)
    images, labels = case.batch(0)
    session.run(TRAIN_AND_UPDATE, [images, labels])
    saved = session.checkpoint(True)
    other.load(saved)
    session.save(tmp_path / "saved", True)
    # A pixel that is not finite leaves the second layer's gradients finite where relu stops it; a weight does not.
    session.parameter("fc2.weight")[3, 5] = value
    with pytest.raises(TrainerError, match="not finite: fc2") as error:
        session.run(TRAIN_AND_UPDATE, [images, labels])
    assert error.value.status == BAD_VALUE
    for refused in (
        lambda: session.run(TRAIN_AND_UPDATE, [images, labels]),
        lambda: session.run(EVAL, case.eval_batch()),
        lambda: session.checkpoint(True),
        lambda: session.save(tmp_path / "saved", True),
    ):
        with pytest.raises(TrainerError, match="first load a checkpoint") as error:
            refused()
        assert error.value.status == BAD_CHECKPOINT
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert (tmp_path / "saved").read_bytes() == saved
    with pytest.raises(TrainerError):
        session.load(saved[:-100])
    assert session.library.load_checkpoint(session._session, None, 0) == BAD_CHECKPOINT
    with pytest.raises(TrainerError, match="first load a checkpoint"):
        session.run(TRAIN_AND_UPDATE, [images, labels])
    session.load(saved)
    for each in (session, other):
        each.run(TRAIN_AND_UPDATE, case.batch(1))
    assert session.checkpoint(True) == other.checkpoint(True)


def test_a_session_that_has_ended_gives_and_takes_no_parameters():
    """Parameters of which some were updated would go to a server that averages them."""
    folder = folder_of("mlp")
    _, one = fused(folder, components=frozenset({"buffers", "export"}))
    case = load(folder)
    session = one.session(case.checkpoint)
    before = session.buffer(False)
    session.parameter("fc2.weight")[3, 5] = np.nan
    with pytest.raises(TrainerError, match="not finite: fc2"):
        session.run(TRAIN_AND_UPDATE, case.batch(0))
    for refused in (
        lambda: session.buffer(True),
        lambda: session.fill(before, trainable_only=False),
        lambda: session.export(b""),
    ):
        with pytest.raises(TrainerError, match="first load a checkpoint"):
            refused()
    session.load(case.checkpoint)
    assert np.array_equal(session.buffer(False), before)


def test_a_checkpoint_without_optimizer_state_starts_anew():
    """Moments that some parameters got from the failed step are gone."""
    folder = folder_of("mlp")
    _, one = fused(folder)
    case = load(folder)
    session, fresh = one.session(case.checkpoint), one.session(case.checkpoint)
    session.run(TRAIN_AND_UPDATE, case.batch(0))
    session.parameter("fc2.weight")[0, 0] = np.nan
    with pytest.raises(TrainerError, match="not finite"):
        session.run(TRAIN_AND_UPDATE, case.batch(1))
    session.load(case.checkpoint)
    assert session.step_count == 0
    for each in (session, fresh):
        each.run(TRAIN_AND_UPDATE, case.batch(1))
    assert state(session) == state(fresh)


def test_what_needs_all_gradients_is_refused_before_anything_is_built():
    with pytest.raises(BadInput, match=r"InplaceClipGradNorm.* needs the gradients of all parameters"):
        compile_model(folder_of("mlp_wd_clip"), {}, {}, options=PlanOptions(updates=Updates(fused=True)))
    with pytest.raises(BadInput, match="does not have both"):
        compile_model(
            folder_of("mlp"), {}, {}, options=PlanOptions(graphs=("train",), updates=Updates(fused=True))
        )


def test_a_batch_that_could_be_refused_behind_an_update_is_unsupported():
    """Seeded: an update that stands before the loss, which checks the labels."""
    artifacts, operators = load(folder_of("mlp")).artifacts, registry()
    program = optimize(fuse_updates(lower(artifacts, operators, {}), operators, checks=True), operators)
    check_refusals(program, operators)
    train = program.procedures[0]
    update = next(c for c in train.calls if c.op == "com.microsoft:AdamWOptimizer")
    early = replace(train, calls=(update, *(c for c in train.calls if c is not update)))
    with pytest.raises(Unsupported, match="may refuse values of a batch behind the first update"):
        check_refusals(replace(program, procedures=(early,)), operators)


def test_plans_of_one_kind_are_not_read_by_libraries_of_the_other():
    folder = folder_of("mlp")
    _, one = fused(folder)
    two = trainer(folder)
    checkpoint = load(folder).checkpoint
    for library, plan in ((one.library, two.data), (two.library, one.data)):
        with pytest.raises(TrainerError, match="plan of version"):
            Session(library, plan, checkpoint)
