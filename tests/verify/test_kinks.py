"""minbuild/verify/kinks.py: where each operator's edges are, and how near is near."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from case_sets import GOLDEN, load

from minbuild.ops import registry
from minbuild.verify import kinks
from minbuild.verify.kinks import Kink, KinkFinder

pytestmark = pytest.mark.unit
EPSILON = 2.0**-23


@pytest.mark.parametrize(
    ("operator", "attributes", "inputs", "edges"),
    [
        *(("Relu", {}, (), [0]), ("LeakyRelu", {}, (), [0]), ("PRelu", {}, (), [0]), ("Abs", {}, (), [0])),
        ("Clip", {}, (0, np.array(-1.0), np.array(6.0)), [-1, 6]),
        ("Clip", {}, (0, None, np.array([6.0])), [6]),
        ("Clip", {"min": -2.0, "max": 3.0}, (0,), [-2, 3]),
        ("Clip", {}, (0, np.zeros(2), np.zeros(0)), []),
        ("HardSigmoid", {}, (), [-2.5, 2.5]),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, (), [-0.5, 1.5]),
        ("HardSwish", {}, (), [-3, 3]),
        ("ThresholdedRelu", {}, (), [1]),
        ("ThresholdedRelu", {"alpha": 2.0}, (), [2]),
    ],
)
def test_edges(operator: str, attributes: dict, inputs: tuple, edges: list[float]) -> None:
    assert list(kinks._EDGES[operator](attributes, inputs)) == pytest.approx(edges)


@pytest.fixture(scope="module", name="finder")
def make_finder() -> KinkFinder:
    case = load(GOLDEN / "dense")
    return KinkFinder(case.artifacts, registry(), case.artifacts.checkpoint, tuple(case.batch(0)))


def at_distance(finder: KinkFinder, units: float) -> tuple[KinkFinder, int]:
    """The finder with a bias that puts one element of the first layer so many units beside the edge, and which."""
    held = {p.name: np.asarray(p.data, np.float64) for p in finder.checkpoint.parameters}
    weight, bias = (held[n] for n in ("fc1.weight", "fc1.bias"))
    scores = finder.batch[0].astype(np.float64).reshape(len(finder.batch[0]), -1) @ weight.T + bias
    row, column = np.unravel_index(np.abs(scores).argmin(), scores.shape)
    moved = bias.copy()
    for _ in range(5):  # the unit is that of the largest element, which the bias moves, too
        unit = EPSILON * np.abs(scores - bias + moved).max()
        moved[column] = bias[column] - scores[row, column] + units * unit
    parameters = tuple(
        replace(p, data=moved) if p.name == "fc1.bias" else p for p in finder.checkpoint.parameters
    )
    start = replace(finder.checkpoint, parameters=parameters)
    return replace(finder, checkpoint=start), int(row * scores.shape[1] + column)


@pytest.mark.parametrize(
    ("units", "near"), [(0.5, True), (-40, True), (63.9, True), (-63.9, True), (64.2, False), (-65, False)]
)
def test_near_is_within_64_units(finder: KinkFinder, units: float, near: bool) -> None:
    moved, element = at_distance(finder, units)
    found = [k for k in moved.run(()).near if k.element == element]
    assert bool(found) == near
    if found:
        assert found[0].distance / found[0].unit == pytest.approx(units, rel=1e-6) and found[0].edge == 0


def test_a_flipped_kink_is_as_far_on_the_other_side(finder: KinkFinder) -> None:
    """Gradients of what is before it come or go: of that element far more than of those that feel its output."""
    moved, element = at_distance(finder, 10)
    (kink,) = (k for k in moved.run(()).near if k.element == element)
    ours, theirs = moved.run(()).gradients, moved.run((kink,)).gradients
    change = theirs["fc1.bias"] - ours["fc1.bias"]
    column = element % len(change)
    assert np.abs(change).argmax() == column and np.abs(np.delete(change, column)).max() < 1e-4 * abs(
        change[column]
    )
    exact = replace(kink, distance=0.0)  # on the edge itself: a hair below
    again = moved.run((exact,)).gradients["fc1.bias"] - ours["fc1.bias"]
    np.testing.assert_allclose(again[column], change[column], rtol=1e-4)


def test_what_kinks_explain_is_named_and_the_rest_is_left(finder: KinkFinder) -> None:
    moved, element = at_distance(finder, 10)
    (kink,) = (k for k in moved.run(()).near if k.element == element)
    found, recorded = moved.run(()).gradients, moved.run((kink,)).gradients
    units = dict.fromkeys(found, 1e-09)
    shown, left = moved.explain(found, recorded, units, 4.0) or ((), {})
    assert shown == (kink,)
    assert all(np.abs(left[n].reshape(-1) - recorded[n].reshape(-1)).max() < 1e-8 for n in left)
    back, _ = moved.explain(recorded, found, units, 4.0) or ((), {})
    assert back == (kink,)  # the other way round
    same, nothing = moved.explain(found, found, units, 4.0) or ((kink,), {})
    assert same == () and all(np.array_equal(nothing[n].reshape(-1), found[n].reshape(-1)) for n in nothing)
    near, rest = moved.explain(found, recorded, dict.fromkeys(found, 1000000000.0), 4.0) or ((kink,), {})
    assert near == () and all(
        np.allclose(rest[n].reshape(-1), found[n].reshape(-1), rtol=1e-12) for n in rest
    )
    wrong = {n: g * 1.001 for n, g in recorded.items()}
    assert moved.explain(found, wrong, units, 4.0) is None


def test_a_kink_says_where_it_is() -> None:
    text = str(Kink("act", "x", 7, 6.0, -2e-7, 1e-7))
    assert (
        text == "element 7 of 'x', input of node 'act', is -2e-07 from its edge at 6, 2 times the last place"
    )


class Decided(KinkFinder):
    """A step of one parameter whose gradient each kink moves by what `moves` says, in place of a real one."""

    moves = {"first": (1.0, 1.0, 2.0), "second": (0.0, 0.0, 2.0)}

    def run(self, flipped: tuple[Kink, ...]) -> SimpleNamespace:
        near = [Kink(name, "x", 0, 0.0, unit, 1.0) for unit, name in enumerate(self.moves)]
        moved = sum((np.array(self.moves[kink.node]) for kink in flipped), np.zeros(3))
        return SimpleNamespace(gradients={"w": moved}, near=near)


def test_a_kink_that_explains_nothing_is_no_step_to_one_that_does(finder: KinkFinder) -> None:
    """Each kink has to bring the gradients nearer to the recorded ones: any two could explain anything."""
    decided = Decided(finder.artifacts, finder.registry, finder.checkpoint, finder.batch)
    found, units = {"w": np.zeros(3)}, {"w": 1.0}
    assert decided.explain(found, {"w": np.array([1.0, 1.0, 0.0])}, units, 0.5) is None
    kinks_shown, ours = decided.explain(found, {"w": np.array([1.0, 1.0, 2.0])}, units, 0.5) or ((), {})
    assert [kink.node for kink in kinks_shown] == ["first"] and ours["w"].tolist() == [1, 1, 2]
