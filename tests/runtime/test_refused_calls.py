"""A call that fails leaves a session as it was, bit for bit: every case, every way to fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from case_sets import EVAL, TRAIN, CaseSet, Trainer, folders, load, loaded, persistent, trainer
from onnx import TensorProto
from quantized_nets import artifact_set
from shared_library import shared_library
from training_models import Trainable, device, node, regression

from minbuild import assets
from minbuild.codegen.sources import emit_sources
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.ops import registry
from minbuild.planning.library_contents import ROLLBACK
from minbuild.planning.plan_encoding import plan_schema
from minbuild.planning.rollback import CHECKED_ARGUMENTS
from minbuild.training.library import Session, TrainerError

each_case = pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)
OPTIMIZE, INITIALIZE = 2, 3


def snapshot(session: Session, built: Trainer) -> dict[str, object]:
    """Everything that a caller can see of a session, but for the contents of outputs and the text of the error."""
    sizes = [
        (found.name, found.value.type, *found.value.dims[: found.value.rank])
        for graph in (TRAIN, EVAL)
        for output in (0, 1)
        for found in session._listed(2 * graph + output)
    ]
    replaces = session._session.contents.replaces_gradients
    return {"memory": persistent(session, built), "sizes": sizes, "replaces gradients": replaces}


def warmed_up(case: CaseSet, built: Trainer) -> Session:
    """A session in the middle of training: moments, statistics and gradients are not what they were at the start."""
    session = built.session(case.checkpoint)
    session.run(TRAIN, case.batch(0))
    session.optimizer_step()
    session.lazy_reset_grad()
    session.run(TRAIN, case.batch(1))
    return session


def spoilt(batch: list[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The batch with one label or index that names nothing: in the first, a middle and the last place."""
    for number, array in enumerate(batch):
        if array.dtype.kind != "i" or array.size == 0:
            continue
        for at in sorted({0, array.size // 2, array.size - 1}):
            for value in (np.iinfo(array.dtype).max, -(2**31))[: 1 + (at == 0)]:
                wrong = array.copy()
                wrong.reshape(-1)[at] = value
                yield f"input {number} at {at}: {value}", [*batch[:number], wrong, *batch[number + 1 :]]


def misshapen(batch: list[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Batches that are no batches of the model."""
    yield "no inputs", []
    yield "one too many", [*batch, batch[0]]
    for number, array in enumerate(batch):
        before, after = batch[:number], batch[number + 1 :]
        other = np.int8 if array.dtype != np.int8 else np.float32
        yield f"input {number} as {other.__name__}", [*before, array.astype(other), *after]
        yield f"input {number} with one more axis", [*before, array[None], *after]
        for axis in range(array.ndim):
            longer = np.concatenate([array, array.take([0], axis)], axis)
            yield f"input {number} longer in axis {axis}", [*before, longer, *after]


def too_large(case: CaseSet) -> Iterator[tuple[str, list[np.ndarray]]]:
    """A batch beyond what the session has memory for."""
    if not case.fixed:
        yield "2000 samples", case.samples(2000)


def refused(session: Session, built: Trainer, what: str, call: Callable[[], object]) -> bool:
    """Whether a call fails; then nothing may have changed."""
    before = snapshot(session, built)
    try:
        call()
    except TrainerError:
        after = snapshot(session, built)
        for name, value in before.items():
            assert after[name] == value, f"{what}: {name} changed"
        return True
    return False


@each_case
def test_a_call_that_fails_changes_nothing(folder):
    case, built = load(folder), trainer(folder)
    session = warmed_up(case, built)
    batch = case.batch(2)
    causes = [*spoilt(batch), *misshapen(batch), *too_large(case)]
    failed = []
    for graph, name in ((TRAIN, "train"), (EVAL, "eval")):
        for what, wrong in causes:
            label = f"{name}, {what}"
            if refused(session, built, label, lambda s=session, g=graph, w=wrong: s.run(g, w)):
                failed.append(label)
            else:  # such a batch is one after all
                session = warmed_up(case, built)
    for graph in (INITIALIZE, 4, 7, -1):
        if refused(session, built, f"graph {graph}", lambda s=session, g=graph: s.run(g, [])):
            failed.append(f"graph {graph}")
    extra = [np.zeros(1, np.float32)]
    assert refused(session, built, "an optimizer step with an input", lambda: session.run(OPTIMIZE, extra))
    assert {"train, no inputs", "train, one too many", "graph 7"} <= set(failed)
    if any(x.dtype.kind == "i" for x in batch):
        assert any(label.startswith("train, input") and ":" in label for label in failed)
    clean = warmed_up(case, built)
    for each in (clean, session):
        each.optimizer_step()
        each.lazy_reset_grad()
        each.run(TRAIN, case.batch(3))
        each.optimizer_step()
    assert persistent(session, built) == persistent(clean, built), "training goes on differently"


def test_a_library_without_rollback_leaves_running_statistics_changed():
    """The test above would notice: this is what `--rollback off` gives up."""
    folder = next(f for f in folders() if f.name == "residual")
    case, built = load(folder), trainer(folder)
    bare = replace(built.contents, safety=built.contents.safety - {ROLLBACK})
    library = shared_library(emit_sources(bare, registry()))
    session = warmed_up(case, replace(built, library=loaded(library)[1]))
    before = persistent(session, built)
    (_, wrong), *_ = spoilt(case.batch(2))
    with pytest.raises(TrainerError, match="value out of range"):
        session.run(TRAIN, wrong)
    after = persistent(session, built)
    trained = 2 * built.plan.trainable_bytes
    assert after != before and after[:trained] == before[:trained]


def late_index() -> Trainable:
    """Own training that updates W, and then keeps the row of the new W that the targets name."""
    step = [
        node("Sub", "W dW", "W1"),
        node("ReduceMax", "t", "largest", keepdims=0),
        node("Cast", "largest", "row", to=TensorProto.INT64),
        node("Gather", "W1 row", "kept1"),
    ]
    return regression(step, "W=W1 kept=kept1", {"kept": np.zeros(3, np.float32)})


def test_own_training_that_is_refused_behind_an_update_changes_nothing(tmp_path):
    session = device(late_index().artifacts(tmp_path), tmp_path)
    x = np.float32(np.arange(8).reshape(2, 4) / 8)
    targets = np.float32([[0, 1, 0], [0.5, 0.25, 1]])
    session.run(TRAIN, [x, targets])
    before = {name: session.parameter(name).tobytes() for name in session.parameters}
    for wrong in (100, -100):
        with pytest.raises(TrainerError, match="value out of range"):
            session.run(TRAIN, [x, targets + wrong])
        assert {name: session.parameter(name).tobytes() for name in session.parameters} == before
    session.run(TRAIN, [x, targets + 1])
    assert session.parameter("W").tobytes() != before["W"]
    assert np.array_equal(session.parameter("kept"), session.parameter("W")[2])


@pytest.mark.parametrize("at", [0, -1])
def test_a_row_that_a_table_of_codes_has_not_is_refused(at, tmp_path):
    folder = artifact_set(tmp_path, "uint16 embedding")
    case, built = load(folder), trainer(folder)
    session = warmed_up(case, built)
    before = snapshot(session, built)
    rows, labels = case.batch(1)
    wrong = rows.copy()
    wrong.flat[at] = 50  # of 50 rows
    with pytest.raises(TrainerError, match="value out of range"):
        session.run(TRAIN, [wrong, labels])
    assert snapshot(session, built) == before


def test_kernels_that_refuse_values_read_arguments_known_for_it():
    """What the plan restores follows from names of arguments: every kernel whose source or headers may answer kBadValue
    has one of them, or draws random numbers, or is the check of the loss itself, or of indices before the first of many
    slices."""
    sources = assets.root("kernels")

    @cache
    def refuses(path):
        text = path.read_text()
        included = (sources / name for name in re.findall(r'#include "(lib/[^"]+)"', text))
        return "kBadValue" in text or any(refuses(header) for header in included)

    found = {path.stem for path in sources.glob("ops/*/*.cc") if refuses(path)}
    assert {"gather", "gather_nd", "lstm", "softmax_cross_entropy", "roi_align"} <= found
    known = {
        kernel.stem
        for kernel in registry().all_kernels()
        for arg in registry().functions[kernel.function].args
        if arg.partition(":")[0] in CHECKED_ARGUMENTS
    }
    assert found - known <= {"loss_is_finite", "index_range"}


def test_a_damaged_plan_met_in_the_middle_of_a_call_leaves_parameters_and_statistics():
    """The last step of training names an argument that is not there: by then gradients and statistics were written."""
    folder = next(f for f in folders() if f.name == "residual")
    case, built = load(folder), trainer(folder)
    names = [routine.name for routine in built.plan.routines]
    plan = decode(plan_schema(), built.data)
    graph = plan["graphs"][names.index("train")]
    last = plan["steps"][graph["steps"] + graph["step_count"] - 1]
    plan["args"] = plan["args"].copy()
    plan["args"][last["args"]] = 0x7FFF
    session = replace(built, data=encode(plan_schema(), plan)).session(case.checkpoint)
    before = persistent(session, built)
    for _ in range(2):
        with pytest.raises(TrainerError, match="bad plan"):
            session.run(TRAIN, case.batch(0))
    after, trained = persistent(session, built), built.plan.trainable_bytes
    assert after[:trained] == before[:trained] and after[2 * trained :] == before[2 * trained :]
    assert after[trained : 2 * trained] != before[trained : 2 * trained], (
        "the damage was met too early for this test"
    )
    session.run(EVAL, case.eval_batch())
