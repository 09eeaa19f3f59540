"""minbuild/verify/tolerance.py by its definition, in numbers: what counts as one unit of noise, of each quantity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minbuild.errors import BadInput
from minbuild.verify.kinks import Kink
from minbuild.verify.tolerance import LOOSE_LIMIT, STRICT_LIMIT, Deviation, describe, deviations
from minbuild.verify.trajectory import Reference

pytestmark = pytest.mark.unit
KINK = Kink("act", "x", 0, 0.0, 1e-8, 1e-7)
EPSILON = 2.0**-23
F = np.float32


def recording(noise: dict[str, Any] | None = None, rate: float = 0.5, **arrays: np.ndarray) -> Reference:
    named = {name.replace("__", "/"): np.asarray(array) for name, array in arrays.items()}
    return Reference(
        Path("here.npz"), {"loss": np.array([1.0, 2.0, 0.5], F), **named}, rate, 1, noise or {}, None
    )


def results(**arrays: object) -> dict[str, np.ndarray]:
    named = {name.replace("__", "/"): np.asarray(array) for name, array in arrays.items()}
    losses = {f"loss {i}/out": np.array([x], np.float64) for i, x in enumerate((1.0, 2.0, 0.5))}
    return {**losses, **named}


def one(reference: Reference, found: dict[str, np.ndarray], what: str) -> Deviation:
    (deviation,) = (d for d in deviations(reference, found) if d.what == what)
    return deviation


def test_limits_are_loose_where_training_has_magnified_rounding() -> None:
    loose = {"loss", "resume loss", "eval after"}
    for what in (*loose, "eval before", "step-1 gradients", "step-1 parameters", "resume-step gradients"):
        assert Deviation(what, 0, 0, "").limit == (LOOSE_LIMIT if what in loose else STRICT_LIMIT)
    assert (STRICT_LIMIT, LOOSE_LIMIT) == (4, 10)


def test_a_loss_counts_in_its_own_rounding() -> None:
    """Two units in the last place of the largest loss so far, and of a 64th at least."""
    same = one(recording(), results(), "loss")
    assert (same.noise, same.absolute) == (0, 0)
    for step, unit in enumerate((2 * EPSILON, 4 * EPSILON, 4 * EPSILON)):
        off = results()
        off[f"loss {step}/out"] += 3 * EPSILON
        found = one(recording(), off, "loss")
        assert found.noise == pytest.approx(3 * EPSILON / unit) and found.where == f"step {step + 1}"
        assert found.absolute == pytest.approx(3 * EPSILON)
    tiny = Reference(Path(), {"loss": np.array([0.0], F)}, 1, 1, {}, None)
    assert one(tiny, {"loss 0/out": np.array([EPSILON])}, "loss").noise == pytest.approx(2.0**5)


def test_a_loss_counts_in_recorded_noise_that_training_carries_on() -> None:
    for noise, units in (
        (0.1, (1, 1, 1)),
        ([0.1, 0.4, 0.2], (1, 0.25, 0.25)),
        ([0.4, 0.1, 0.1], (0.25, 0.25, 0.25)),
    ):
        for step, wanted in enumerate(units):
            off = results()
            off[f"loss {step}/out"] += 0.1
            found = one(recording({"loss_per_step": noise}), off, "loss")
            assert found.noise == pytest.approx(wanted), (noise, step)


def test_only_the_first_output_is_the_loss() -> None:
    off = {"loss 0/a": np.array([1.0, 99.0]), "loss 0/b": np.array([99.0]), "loss 1/a": np.array([2.0])}
    assert one(recording(), off, "loss").noise == 0


@pytest.mark.parametrize(("name", "noise"), [("eval before", 0.1), ("eval after", 0.4)])
def test_evaluation_counts_in_the_noise_of_its_time(name: str, noise: float) -> None:
    label = name.replace(" ", "_")
    reference = recording({"loss_per_step": [0.1, 0.4, 0.2]}, **{label: np.array(3.0, F)})
    found = one(reference, results(**{f"{label}__loss": [3.2]}), name)
    assert found.noise == pytest.approx(0.2 / noise) and found.where == label
    assert name not in {d.what for d in deviations(reference, results())}  # not there: not judged


def test_a_resumed_loss_counts_like_the_first_then_like_the_worst() -> None:
    reference = recording(
        {"loss_per_step": [0.1, 0.4, 0.2]}, loss_resume_opt=np.array([1.0, 1.0, 1.0, 1.0], F)
    )
    for step, noise in enumerate((0.1, 0.4, 0.4)):
        off = {f"resume {i}/out": np.array([1.0 + 0.2 * (i == step)]) for i in range(3)}
        found = one(reference, results() | off, "resume loss")
        assert found.noise == pytest.approx(0.2 / noise) and found.where == f"step {step + 1}"


@pytest.mark.parametrize(
    ("kind", "what"), [("grad_step1", "step-1 gradients"), ("resume1_grad", "resume-step gradients")]
)
def test_gradients_count_in_their_noise(kind: str, what: str) -> None:
    """The recorded one; the rounding of the parameter's largest; a sixteenth of that of the model's largest."""
    recorded = {f"{kind}__w": np.array([4.0, 1.0], F), f"{kind}__b": np.array([2.0**-9], F)}
    exact = {name: array.astype(np.float64) for name, array in recorded.items()}
    for noise, name, unit in (
        ({}, "w", 2 * EPSILON * 4),
        ({}, "b", 4 * EPSILON / 16),
        ({"grad1_rel_max": 2.0**-10}, "w", 4 * 2.0**-10),
        ({"grad1_rel_max": 2.0**-3}, "b", 2.0**-12),
        ({"grad1_abs": {"w": 0.5}}, "w", 0.5),
        ({"grad1_abs": {"b": 0.5}}, "b", 0.5),
        ({"grad1_abs": {"b": 0.5}}, "w", 2 * EPSILON * 4),
    ):
        off = dict(exact)
        off[f"{kind}__{name}"] = off[f"{kind}__{name}"] + np.eye(len(off[f"{kind}__{name}"]))[0] * 3 * unit
        found = one(recording(noise, **recorded), results(**off), what)
        assert found.noise == pytest.approx(3) and found.where == name, (noise, name)


@pytest.mark.parametrize(
    ("kind", "slope", "what"),
    [
        ("param_step1", "grad_step1", "step-1 parameters"),
        ("resume1_param", "resume1_grad", "resume-step parameters"),
    ],
)
def test_parameters_count_in_their_rounding_and_the_noise_of_the_gradient(
    kind: str, slope: str, what: str
) -> None:
    recorded = {f"{kind}__w": np.array([4.0, 0.0], F), f"{slope}__w": np.array([0.5, 2.0], F)}
    unit_of_gradient = 2 * EPSILON * 2
    for element, rounding in ((0, 2 * EPSILON * 4), (1, 2 * EPSILON * 2.0**-10)):
        size = abs(float(recorded[f"{slope}__w"][element]))
        unit = rounding + 0.5 * unit_of_gradient / size * max(1.0, size)
        off = recorded[f"{kind}__w"].astype(np.float64)
        off[element] += 3 * unit
        found = one(recording(**recorded), results(**{f"{kind}__w": off}), what)
        assert found.noise == pytest.approx(3, rel=1e-6) and found.where == "w"
    # What the gradient is off by is judged with the gradient.
    off = recorded[f"{kind}__w"].astype(np.float64) + [0.2, 0]
    wrong = {f"{kind}__w": off, f"{slope}__w": recorded[f"{slope}__w"] + np.array([0.25, 0])}
    assert one(recording(**recorded), results(**wrong), what).noise == pytest.approx(
        0.2 / (0.5 * 0.25 / 0.5), rel=1e-4
    )


def test_statistics_count_in_eight_units_more() -> None:
    recorded = {"param_step1__running": np.array([2.0, 1.0], F)}
    unit = 2 * EPSILON * 1 + 8 * EPSILON * 2
    found = one(
        recording(**recorded), results(param_step1__running=[2.0, 1.0 + 3 * unit]), "step-1 parameters"
    )
    assert found.noise == pytest.approx(3)


def test_what_is_no_number_on_one_side_only_is_infinitely_far() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        off = results(eval_before__loss=[bad])
        for recorded, noise in ((3.0, np.inf), (bad, 0), (np.nan, 0)):
            reference = recording(eval_before=np.array(recorded, F))
            assert one(reference, off, "eval before").noise == noise
        reference = recording(eval_before=np.array(bad, F))
        assert one(reference, results(eval_before__loss=[3.0]), "eval before").noise == np.inf


def test_another_shape_is_another_model() -> None:
    reference = recording(grad_step1__w=np.zeros((2, 2), F))
    with pytest.raises(BadInput, match=r"here.npz: grad_step1/w has shape \[2, 2\], the model's is \[4\]"):
        deviations(reference, results(grad_step1__w=np.zeros(4)))
    assert "step-1 gradients" not in {d.what for d in deviations(reference, results())}


def test_the_worst_is_described_first() -> None:
    found = [Deviation("loss", 0.5, 1e-6, "step 2"), Deviation("eval after", 3.25, 2e-3, "eval_after")]
    assert describe(found) == "eval after 3.2 (0.002 at eval_after); loss 0.5 (1e-06 at step 2)"


def test_nothing_is_divided_by_no_noise() -> None:
    reference = recording(grad_step1__w=np.zeros(2, F))
    found = one(reference, results(grad_step1__w=[0, 3e-30]), "step-1 gradients")
    assert found.noise == pytest.approx(3)


class Finder:
    """Explains everything by one kink, where it is asked."""

    def __init__(self, may: bool) -> None:
        self.may = may

    def explain(self, found: Any, recorded: Any, units: Any, limit: float) -> Any:
        assert self.may and limit == STRICT_LIMIT and set(units) == set(found) == set(recorded) == {"w"}
        assert found["w"][0] != recorded["w"][0] == 4
        return (KINK,), dict(recorded)


def test_kinks_are_only_looked_for_beyond_the_limit() -> None:
    reference = recording(grad_step1__w=np.array([4.0], F))
    for units, asked in ((3, False), (np.inf, False), (100, True)):
        off = results(grad_step1__w=[4 + units * 8 * EPSILON])
        found = deviations(reference, off, {"grad_step1": Finder(asked)})  # type: ignore[dict-item]
        (gradients,) = (d for d in found if d.what == "step-1 gradients")
        assert (gradients.kinks, gradients.noise) == (((KINK,), 0) if asked else ((), pytest.approx(units)))
