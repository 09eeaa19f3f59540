"""Cross-entropy over thousands of classes: near the reference at every vector width, the same bits for any threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import trainers
from conv_layers import libraries_by_width

from minbuild.ir import Plan
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session, TrainerError

KNOWN = registry()
LOSS, GRADIENT = KNOWN.ops[":SoftmaxCrossEntropyLoss"], KNOWN.ops["com.microsoft:SoftmaxCrossEntropyLossGrad"]
LONG = "softmax_cross_entropy.long"
SIZES = (5, 1000), (3, 1003), (4, 1024), (7, 1029), (5, 32_000), (4, 50_257)
IGNORED = -100


@dataclass(frozen=True)
class Built:
    """An application of an operator."""

    name: str
    case: TestCase
    one: trainers.OneNode
    plan: Plan

    def wanted(self, dtype: type[np.floating]) -> dict[str, np.ndarray]:
        return trainers.expected(LOSS if "loss" in self.name else GRADIENT, self.case, dtype)


def _log_prob(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _cases(rows: int, classes: int) -> Iterator[tuple[str, TestCase]]:
    random = np.random.default_rng(classes)
    scores = random.standard_normal((rows, classes)) * 3
    scores[1] = scores[1, 0]  # all alike
    scores[-1, 1] += 40  # almost certain
    labels = random.integers(0, classes, rows)
    labels[0], labels[-1] = classes - 1, 1
    some = labels.copy()
    some[::2] = IGNORED
    weights = random.uniform(0.5, 2, classes)
    for name, given, attributes, of_class in (
        ("mean", labels, {"reduction": "mean"}, None),
        ("sum, ignored", some, {"reduction": "sum", "ignore_index": IGNORED}, None),
        ("mean, weighted", some, {"reduction": "mean", "ignore_index": IGNORED}, weights),
        ("each", some, {"reduction": "none", "ignore_index": IGNORED}, None),
        ("none counts", labels * 0 + IGNORED, {"reduction": "mean", "ignore_index": IGNORED}, None),
    ):
        inputs = (scores, given, of_class)
        yield f"loss, {name}", TestCase(name, inputs, attributes, outputs=2, ulps=8)
        yield f"loss only, {name}", TestCase(name, inputs, attributes, ulps=8)
        dy = random.standard_normal(rows if attributes["reduction"] == "none" else ())
        yield name, TestCase(name, (dy, _log_prob(scores), given, of_class), attributes, ulps=64)


def _built(
    dtype: type[np.floating], sizes: tuple[tuple[int, int], ...], kernels: KernelChoice = EVERY_KERNEL
) -> list[Built]:
    made = []
    for rows, classes in sizes:
        for name, case in _cases(rows, classes):
            one = trainers.one_node(LOSS if "loss" in name else GRADIENT, case, dtype)
            plan = trainers.plan_of(one.artifacts, KNOWN, kernels)
            assert (LONG in plan.features) is (classes >= 1024 and kernels.has(LONG))
            made.append(Built(f"{rows}x{classes} {name}", case, one, plan))
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_those_of_the_reference_at_every_vector_width(dtype, tmp_path):
    """And log probabilities that nobody reads change no bit of the loss, and take no memory."""
    built = _built(dtype, SIZES)
    for width, library in libraries_by_width([b.plan for b in built], tmp_path).items():
        found = {b.name: trainers.run(library, b.plan, b.one) for b in built}
        for b in built:
            for name, wanted in b.wanted(dtype).items():
                wrong = trainers.disagreement(found[b.name][name], wanted, b.case.ulps)
                assert not wrong, (width, b.name, name, wrong)
            whole = found[b.name.replace("loss only", "loss")]
            assert found[b.name]["y0"].tobytes() == whole["y0"].tobytes(), (width, b.name)


def _step(library: Library, b: Built, threads: int) -> list[bytes]:
    session = Session(library, encode_plan(b.plan, {}), None, threads=threads)
    return [array.tobytes() for array in session.run(TRAIN, b.one.feeds)]


def test_any_number_of_threads_computes_the_same_bits(tmp_path):
    built = _built(np.float32, ((67, 1029), (5, 32_000), (2, 50_257)))
    contents = trainers.contents_of([b.plan for b in built])
    single = trainers.library_of(contents, KNOWN, tmp_path)
    several = trainers.library_of(replace(contents, threads=4), KNOWN, tmp_path)
    for b in built:
        alone = _step(single, b, 1)
        for threads in (1, 2, 3, 4):
            assert _step(several, b, threads) == alone, (b.name, threads)


def test_infinities_and_nan_are_those_of_short_rows(tmp_path):
    scores = np.random.default_rng(1).standard_normal((6, 1030))
    scores[0, 5], scores[1, -1], scores[2, 7], scores[3] = np.nan, np.nan, np.inf, -np.inf
    scores[4] *= 1e30
    scores[5, 3:] = -np.inf
    case = TestCase("extremes", (scores, np.arange(6)), {"reduction": "none"}, outputs=2, ulps=8)
    one = trainers.one_node(LOSS, case, np.float32)
    plan = trainers.plan_of(one.artifacts, KNOWN)
    contents = trainers.contents_of([plan])
    short = replace(contents, features=contents.features - {LONG})
    wanted = trainers.run(trainers.library_of(short, KNOWN, tmp_path), replace(plan, features=()), one)
    for library in libraries_by_width([plan], tmp_path).values():
        found = trainers.run(library, plan, one)
        for name in ("y0", "y1"):
            assert np.array_equal(np.isnan(found[name]), np.isnan(wanted[name]))
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6, equal_nan=True)


def test_a_label_that_is_no_class_is_refused(tmp_path):
    all_of_them = _built(np.float32, ((3, 2000),))
    library = trainers.library_of(trainers.contents_of([b.plan for b in all_of_them]), KNOWN, tmp_path)
    for b in all_of_them:
        session = trainers.session_of(library, b.plan, b.one.state)
        feeds, at = list(b.one.feeds), 1 if "loss" in b.name else 2
        for label in (2000, -1, 2**31, -(2**62)):
            feeds[at] = np.array([0, label, 3])
            with pytest.raises(TrainerError, match="softmax_cross_entropy(_grad)?<.*>: value out of range"):
                session.run(TRAIN, feeds)
        feeds[at] = np.array([0, 1999, 3])
        assert all(np.isfinite(x).all() for x in session.run(TRAIN, feeds))


def test_a_library_without_long_rows_computes_the_same_plan(tmp_path):
    """Plans for a library that is there keep room for the log probabilities if it lacks the feature."""
    names = {k.function for op in (LOSS, GRADIENT) for k in op.kernels} | set(KNOWN.all_features())
    built = _built(np.float32, ((3, 2001),), KernelChoice(held=frozenset(names - {LONG})))
    library = trainers.library_of(trainers.contents_of([b.plan for b in built]), KNOWN, tmp_path)
    for b in built:
        found = trainers.run(library, b.plan, b.one)
        for name, wanted in b.wanted(np.float32).items():
            wrong = trainers.disagreement(found[name], wanted, 64)
            assert not wrong, (b.name, name, wrong)
