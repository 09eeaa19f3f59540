"""Micro-batches: slices of a batch give the gradients, losses and outputs of the whole one, or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authored import source
from case_sets import SHARED, TRAIN, load, loaded
from places import GOLDEN

from minbuild.authoring import Recipe, artifacts_of
from minbuild.authoring.losses import LossOptions
from minbuild.codegen.library_builder import build_checked
from minbuild.errors import OverBudget, Unsupported
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.options.build_options import BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.lowering.lower import lower
from minbuild.planning.arena.peak_memory import arena_peak
from minbuild.planning.batch_slices import batch_slices
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import encode_plan
from minbuild.planning.ram_budget import ram_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import EVAL, Library, Session, TrainerError

OPERATORS = registry()
ROUNDING = 2.0**-24
# Of the largest gradient: sums of a batch have other orders of up to a few hundred numbers.
TOLERANCE = 64 * ROUNDING
SETS = [
    pytest.param(p, id=p.name)
    for p in (
        *(GOLDEN / n for n in ("conv", "weighted", "embedding")),
        *(SHARED / n for n in ("bert_tiny", "multi_out")),
    )
    if p.is_dir()
]
SCORES = "net (float[batch, 6] x) => (float[batch, 3] scores) { scores = MatMul(x, w) }"
IGNORED = -100


def compiled(
    artifacts: TrainingArtifacts, ram: int | None = None, largest: int = 8, **fixed: int
) -> CompiledModel:
    sizes = {} if fixed else {"batch": largest}
    artifacts = replace(artifacts, digests={artifacts.training.source: "0" * 64} | dict(artifacts.digests))
    checkpoint = write_checkpoint(artifacts.checkpoint)
    return compile_artifacts(artifacts, checkpoint, OPERATORS, fixed, sizes, options=PlanOptions(ram=ram))


def fitted(artifacts: TrainingArtifacts, **fixed: int) -> CompiledModel:
    """With the largest slices: the most bytes of RAM that the usual plan does not fit."""
    usual = compiled(artifacts, **fixed)
    return compiled(artifacts, ram_of(usual.plan, usual.largest) - 1, **fixed)


def session_of(model: CompiledModel, checkpoint: bytes | None = None, **options: str) -> Session:
    chosen = BuildOptions(**options)  # type: ignore[arg-type]
    contents = contents_of((model,), build_options=chosen)
    built = build_checked(contents, OPERATORS, host_target(), find_toolchain(build_options=chosen))
    plan = b"" if options.get("flavor") == "compiled" else model.plan_bytes
    return Session(Library(loaded(built.built.shared)[0]), plan, checkpoint or model.checkpoint)


def gradients_of(session: Session, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {n: np.array(session.gradient(n)) for n in names}


def assert_close(
    found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], tolerance: float = TOLERANCE
) -> None:
    """`exact` within a `tolerance` of the largest gradient."""
    largest = max(float(np.abs(exact[n]).max()) for n in exact)
    for name in exact:
        assert np.abs(found[name] - exact[name]).max() <= tolerance * largest, name


def labelled(**options: Any) -> TrainingArtifacts:
    """A linear layer under a loss over labels with these options."""
    random = np.random.default_rng(5)
    weights = {"w": random.standard_normal((6, 3)).astype(np.float32)}
    recipe = Recipe(loss="cross-entropy", loss_options=LossOptions(**options))
    return artifacts_of(source(SCORES, weights), recipe, OPERATORS)


@pytest.mark.parametrize("folder", SETS)
def test_slices_give_what_the_whole_batch_gives(folder: Path) -> None:
    """In one step, and in a second that adds to its gradients; in double precision, and as the usual plan."""
    case = load(folder)
    usual, model = compiled(case.artifacts), fitted(case.artifacts)
    assert model.fitted is not None and model.fitted.slices is not None and model.fitted.slices.size == 1
    assert model.fitted.ram == ram_of(model.plan, model.largest) < ram_of(usual.plan, usual.largest)
    exact, whole, sliced = ReferenceTrainer(case.artifacts), session_of(usual), session_of(model)
    for count in (8, 3):
        batch = case.samples(count)
        outputs, expected = sliced.run(TRAIN, batch), whole.run(TRAIN, batch)
        for one, other in zip(outputs, expected, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        exact.train_step(*batch)
        found = gradients_of(sliced, exact.trained)
        assert_close(found, exact.gradients)
        assert_close(found, gradients_of(whole, exact.trained))
    sliced.close(), whole.close()


@pytest.mark.parametrize("size", [4, 2])
def test_larger_slices_of_a_fixed_batch_and_both_flavours(size: int) -> None:
    case = load(GOLDEN / "conv")
    program = lower(case.artifacts, OPERATORS, {"batch": 8})
    assert batch_slices(case.artifacts, program, OPERATORS, {"batch": 8}).sizes == (4, 2, 1)
    model = fitted(case.artifacts, batch=8)
    while _size(model) > size:
        assert model.fitted is not None
        model = compiled(case.artifacts, model.fitted.ram - 1, batch=8)
    assert _size(model) == size
    exact, batch = ReferenceTrainer(case.artifacts), case.samples(8)
    exact.train_step(*batch)
    bits = []
    for flavor in ("interpreted", "compiled"):
        session = session_of(model, flavor=flavor)
        outputs = session.run(TRAIN, batch)
        found = gradients_of(session, exact.trained)
        assert_close(found, exact.gradients)
        bits.append(b"".join(a.tobytes() for a in (*outputs, *found.values())))
        session.close()
    assert bits[0] == bits[1]


def _size(model: CompiledModel) -> int:
    assert model.fitted is not None and model.fitted.slices is not None
    return model.fitted.slices.size


def test_dense_plans_have_the_same_loop() -> None:
    case = load(GOLDEN / "conv")
    model = fitted(case.artifacts)
    dense = replace(model, plan_bytes=encode_plan(model.plan, model.largest, dense=2))
    assert len(dense.plan_bytes) < len(model.plan_bytes)
    found = []
    for each in (model, dense):
        session = session_of(each)
        session.run(TRAIN, case.samples(8))
        found.append(b"".join(np.array(session.gradient(n)).tobytes() for n in case.recorded("grad_step1")))
        session.close()
    assert found[0] == found[1] != b""


WEIGHTS = np.array([0.5, 2.0, 1.25], np.float32)


@pytest.mark.parametrize(
    "options",
    [{}, {"class_weights": WEIGHTS}, {"class_weights": WEIGHTS, "reduction": "sum"}],
    ids=["ignored", "weighted", "summed"],
)
def test_weights_and_ignored_labels_count_over_the_whole_batch(options: dict[str, Any]) -> None:
    artifacts = labelled(ignore_index=IGNORED, **options)
    model = fitted(artifacts)
    assert model.fitted is not None and model.fitted.slices is not None
    random = np.random.default_rng(7)
    labels = np.array([0, IGNORED, 2, 2, IGNORED, 1, 0, 1])
    batch = [random.standard_normal((8, 6)).astype(np.float32), labels]
    exact, session = ReferenceTrainer(artifacts), session_of(model)
    loss = exact.train_step(*batch)[0]
    assert abs(session.run(TRAIN, batch)[0] - loss) <= TOLERANCE * abs(loss)
    assert_close(gradients_of(session, exact.trained), exact.gradients)
    session.lazy_reset_grad()
    nothing = [batch[0], np.full(8, IGNORED)]
    assert session.run(TRAIN, nothing)[0] == 0
    assert not np.any(session.gradient("w"))
    session.close()


def test_a_refused_batch_changes_nothing() -> None:
    """A label that is no class, in the last slice, is found before the first."""
    artifacts = labelled()
    session = session_of(fitted(artifacts))
    random = np.random.default_rng(7)
    batch = [random.standard_normal((8, 6)).astype(np.float32), np.arange(8) % 3]
    session.run(TRAIN, batch)
    before = np.array(session.gradient("w"))
    with pytest.raises(TrainerError):
        session.run(TRAIN, [batch[0], np.array([0, 1, 2, 0, 1, 2, 0, 3])])
    np.testing.assert_array_equal(session.gradient("w"), before)
    session.close()


NET = "net (float[batch, 6] x) => (float[batch, 3] scores)"
MIXING = [
    ("{{ m = ReduceMean <axes: ints = [0]> (x) d = Sub(x, m) scores = MatMul(d, w) }}", "Sub"),
    (
        "{{ m = ReduceMax <axes: ints = [0], keepdims: int = 1> (x) d = Sub(x, m) scores = MatMul(d, w) }}",
        "ReduceMax",
    ),
    ("{{ t = Transpose (x) c = MatMul(x, t) d = MatMul(c, x) scores = MatMul(d, w) }}", "MatMul"),
    ("{{ d = CumSum(x, zero) scores = MatMul(d, w) }}", "CumSum"),
]


@pytest.mark.parametrize(("body", "operator"), MIXING, ids=[name for _, name in MIXING])
def test_operators_that_mix_samples_are_named(body: str, operator: str) -> None:
    weights = {"w": np.ones((6, 3), np.float32), "zero": np.zeros((), np.int64)}
    if "zero" not in body:
        del weights["zero"]
    artifacts = artifacts_of(source(f"{NET} {body.format()}", weights), Recipe(loss="mse"), OPERATORS)
    usual = compiled(artifacts)
    with pytest.raises(OverBudget, match=rf"\({operator}\)"):
        compiled(artifacts, usual.plan.persistent_bytes + 64)


def turned(outputs: tuple[str, ...] = ()) -> TrainingArtifacts:
    """Steps before samples, as one axis for a product, as attention of PyTorch computes it, and back."""
    net = (
        "net (float[batch, 4, 6] x) => (float[batch, 3] scores) { t = Transpose <perm: ints = [1, 0, 2]> (x) "
        "flat = Reshape (t, rows) p = MatMul (flat, w) h = Tanh (p) steps = Reshape (h, apart) "
        "back = Transpose <perm: ints = [1, 0, 2]> (steps) "
        "scores = ReduceMean <axes: ints = [1], keepdims: int = 0> (back) }"
    )
    weights = {
        "w": np.random.default_rng(6).standard_normal((6, 3)).astype(np.float32),
        "rows": np.array([-1, 6]),
        "apart": np.array([4, -1, 3]),
    }
    return artifacts_of(source(net, weights), Recipe(loss="cross-entropy", outputs=outputs), OPERATORS)


def test_rows_of_samples_may_take_turns() -> None:
    artifacts = turned()
    usual, model = compiled(artifacts), fitted(artifacts)
    assert model.fitted is not None and model.fitted.slices is not None
    random = np.random.default_rng(8)
    batch = [random.standard_normal((8, 4, 6)).astype(np.float32), np.arange(8) % 3]
    whole, sliced = session_of(usual), session_of(model)
    for one, other in zip(sliced.run(TRAIN, batch), whole.run(TRAIN, batch), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert_close(gradients_of(sliced, ("w",)), gradients_of(whole, ("w",)))
    sliced.close(), whole.close()


def test_outputs_whose_samples_take_turns_are_named() -> None:
    artifacts = turned(("p",))
    with pytest.raises(OverBudget, match="samples of output 'p' do not follow each other"):
        compiled(artifacts, compiled(artifacts).plan.persistent_bytes + 64)


@pytest.mark.parametrize(
    ("folder", "named"),
    [(GOLDEN / "residual", "BatchNormInternal"), (SHARED / "bert_tiny_dropout", "Dropout")],
    ids=["statistics", "dropout"],
)
def test_statistics_and_random_numbers_are_named(folder: Path, named: str) -> None:
    if not folder.is_dir():
        pytest.skip("the larger recorded sets are not beside this repository")
    case = load(folder)
    program = lower(case.artifacts, OPERATORS, {})
    with pytest.raises(Exception, match=named):
        batch_slices(case.artifacts, program, OPERATORS, {})


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_dropout_of_nothing_draws_nothing(ratio: float) -> None:
    """Exporters write such nodes for modules without a rate."""
    body = f"ratio = Constant <value = float {{{ratio}}}> () train = Constant <value = bool {{1}}> () "
    body += "d = Dropout(x, ratio, train) scores = MatMul(d, w)"
    model = source(f"{NET} {{ {body} }}", {"w": np.ones((6, 3), np.float32)})
    artifacts = artifacts_of(model, Recipe(loss="mse"), OPERATORS)
    program = lower(artifacts, OPERATORS, {})
    if ratio == 0:
        batch_slices(artifacts, program, OPERATORS, {})
        return
    with pytest.raises(Unsupported, match=r"\(Dropout\) draws random numbers"):
        batch_slices(artifacts, program, OPERATORS, {})


def test_a_loop_may_have_any_number_of_steps() -> None:
    """More than the byte counts that plans have for loops which begin anywhere; in all encodings."""
    layers = 60
    nodes = " ".join(f"a{i} = MatMul(h{i}, w{i}) h{i + 1} = Tanh(a{i})" for i in range(layers))
    text = f"net (float[batch, 4] h0) => (float[batch, 4] h{layers}) {{ {nodes} }}"
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((4, 4)).astype(np.float32) / 2 for i in range(layers)}
    artifacts = artifacts_of(source(text, weights), Recipe(loss="mse"), OPERATORS)
    model = fitted(artifacts)
    assert model.plan.loops == 4 and len(model.plan.routines[0].steps) > 254
    batch = [random.standard_normal((8, 4)).astype(np.float32) for _ in range(2)]
    exact = ReferenceTrainer(artifacts)
    exact.train_step(*batch)
    dense = replace(model, plan_bytes=encode_plan(model.plan, model.largest, dense=2))
    for each, flavor in ((model, "interpreted"), (dense, "interpreted"), (model, "compiled")):
        session = session_of(each, flavor=flavor)
        session.run(TRAIN, batch)
        # Every layer rounds what the one before it has rounded.
        assert_close(gradients_of(session, exact.trained), exact.gradients, layers * TOLERANCE / 8)
        session.close()


def test_evaluation_is_in_slices_where_its_own_arena_is_too_large() -> None:
    artifacts = labelled(ignore_index=IGNORED)
    usual = compiled(artifacts, largest=256)
    (evaluation,) = (r for r in usual.plan.routines if r.name == "eval")
    most = usual.plan.persistent_bytes + arena_peak(evaluation, usual.largest)
    model = compiled(artifacts, most - 1, largest=256)
    assert {r.name: r.samples for r in model.plan.routines}["eval"] != 1
    random = np.random.default_rng(9)
    batch = [
        random.standard_normal((8, 6)).astype(np.float32),
        np.array([0, IGNORED, 2, 2, IGNORED, 1, 0, 1]),
    ]
    expected = ReferenceTrainer(artifacts).eval_step(*batch)[0]
    session = session_of(model)
    assert abs(session.run(EVAL, batch)[0] - expected) <= TOLERANCE * abs(expected)
    session.close()
