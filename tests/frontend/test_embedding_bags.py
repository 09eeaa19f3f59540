"""Loops over bags of embeddings, as torch exports them: computed by plain operators, and trained like those."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from authored import differences, source, trainer_of
from beside_interpreter import farthest

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ops import registry

ROWS, WIDTH, BAGS, PADDING = 12, 3, 4, 2
TABLE = np.random.default_rng(4).standard_normal((9, WIDTH)).astype(np.float32)
REGULAR = np.arange(0, ROWS + 1, ROWS // BAGS)
CONSTANTS = {
    **{"table": TABLE, "zero": np.array(0), "one": np.array(1), "two": np.array(2), "flat": np.array([-1])},
    **{"axis": np.array([0]), "bags": np.array(BAGS), "yes": np.array(True), "end": np.array([ROWS])},
    **{"last": np.array(BAGS - 1), "padding": np.array(PADDING), "count": np.array(len(TABLE))},
    "nothing": np.array([], np.int64),
}
NONE = f"then_branch = none () => (float[1,{WIDTH}] p) <float[1,{WIDTH}] p = {{0, 0, 0}}> {{ }}"
SLICES = """
    at = Reshape (n, flat) next = Add (at, one) begin = Slice (offsets, at, next)
    after = Add (at, two) stop = Slice (offsets, next, after) empty = Equal (begin, stop)
    r = If (empty) <NONE, else_branch = some () => (float[1,w] q) { TAKEN }>"""
PLACES = """
    begin = Gather (offsets, n) next = Add (n, one) stop = Gather (offsets, next) go = Less (begin, stop)
    j, places = Loop (, go, begin, nothing) <body = place (int64 h, bool d, int64 k, int64[m] found) =>
            (bool e, int64 k2, int64[o] found2) {
        index = Gather (x, k) negative = Less (index, zero)
        positive = If (negative) <then_branch = a () => (int64 u) { u = Add (index, count) },
                                  else_branch = b () => (int64 v) { v = Identity (index) }>
        same = Equal (positive, padding) other = Not (same)
        found2 = If (other) <
            then_branch = c () => (int64[o] w) { place = Reshape (k, flat) w = Concat <axis = 0> (found, place) },
            else_branch = d () => (int64[o] z) { z = Identity (found) }>
        k2 = Add (k, one)
        e = Less (k2, stop)
    }>
    size = Size (places) empty = Equal (size, zero)
    r = If (empty) <NONE, else_branch = some () => (float[1,w] q) { TAKEN }>"""
SUM = "part = Slice (rows, begin, stop) q = ReduceSum (part, axis)"
MEAN = """part = Slice (rows, begin, stop) final = Equal (n, last)
    q = If (final) <
        then_branch = f () => (float[1,w] s) {
            total = ReduceSum (part, axis) many = Sub (end, begin) any = Greater (many, zero)
            s = If (any) <then_branch = g () => (float[1,w] t) { real = Cast <to = 1> (many) t = Div (total, real) },
                          else_branch = i () => (float[1,w] u) { u = Identity (total) }>
        },
        else_branch = l () => (float[1,w] v) { v = ReduceMean (part, axis) }>"""
MAX = """final = Equal (n, last)
    part = If (final) <then_branch = f () => (float[k,w] s) { s = Slice (rows, begin, end) },
                       else_branch = l () => (float[k,w] t) { t = Slice (rows, begin, stop) }>
    q = ReduceMax (part, axis)"""
CHOSEN = "part = Gather (rows, places) q = {} (part, axis)"
# As the exporter writes it when it is told to leave constants and choices between them as they are.
UNFOLDED = """then_branch = none () => (float[1,w] p) {
        nil = Constant <value_floats = [0.0]> () single = Constant <value_ints = [1]> ()
        form = Concat <axis = 0> (single, width) p = Expand (nil, form)
    }, else_branch = some () => (float[1,w] q) {
        mode = Constant <value_int = 1> () summed = Equal (mode, zero)
        q = If (summed) <
            then_branch = g () => (float[1,w] t) { some = Slice (rows, begin, stop) t = ReduceSum (some, axis) },
            else_branch = h () => (float[1,w] u) { mean = Slice (rows, begin, stop) u = ReduceMean (mean, axis) }>
    }"""
BODIES = {
    "mean unfolded": (
        SLICES.replace("NONE, else_branch = some () => (float[1,w] q) { TAKEN }", UNFOLDED),
        "",
    ),
    **{"sum": (SLICES, SUM), "mean": (SLICES, MEAN), "max": (SLICES, MAX)},
    **{f"{n} without padding": (PLACES, CHOSEN.format(f"Reduce{n.title()}")) for n in ("sum", "mean", "max")},
}
MODEL = """
    m (int64[ROWS] x, float[ROWS,1] factor INPUT) => (float[BAGS,WIDTH] y) {
        taken = Gather (table, x)
        rows = Mul (taken, factor)
        width = Shape <start = 1> (table)
        none = SequenceEmpty ()
        number, all = Loop (, yes, zero, none) <
            body = bag (int64 i, bool c, int64 n, seq(float) before) => (bool go_on, int64 n2, seq(float) then) {
                BODY
                then = SequenceInsert (before, r)
                n2 = Add (n, one)
                go_on = Less (n2, bags)
            }>
        joined = ConcatFromSequence <axis = 0> (all)
        y = Tanh (joined)
    }"""
NAMES = [f"{bags}, {name}" for bags in ("equal", "given") for name in BODIES]


def model_of(name: str, **replaced: str) -> Source:
    """A model with bags of equal sizes, or with those that an input gives. `replaced` are parts of its body."""
    bags, name = name.split(", ")
    form, taken = BODIES[name]
    body = form.replace("TAKEN", taken).replace("NONE", NONE)
    for old, new in replaced.items():
        assert old in body
        body = body.replace(old, new)
    text = MODEL.replace("BODY", body).replace("INPUT", ", int64[5] offsets" if bags == "given" else "")
    for size, number in {"ROWS": ROWS, "BAGS": BAGS, "WIDTH": WIDTH}.items():
        text = text.replace(size, str(number))
    given: Mapping[str, np.ndarray] = {} if bags == "given" else {"offsets": REGULAR}
    return source(text, {**CONSTANTS, **given}, opset=18)


def batches(name: str) -> list[list[np.ndarray]]:
    random, found = np.random.default_rng(3), []
    for offsets in ([0, 2, 2, 7, ROWS], [0, 0, 9, 10, ROWS]):
        feeds = [random.integers(-9, 9, ROWS), random.uniform(0.5, 2, (ROWS, 1)).astype(np.float32)]
        feeds[0][:2] = PADDING, PADDING - len(TABLE)  # a bag of nothing but padding
        feeds += [np.array(offsets)] if name.startswith("given") else []
        found.append([*feeds, random.standard_normal((BAGS, WIDTH)).astype(np.float32)])
    return found


def meant(name: str, x: np.ndarray, factor: np.ndarray, offsets: np.ndarray = REGULAR) -> np.ndarray:
    rows = TABLE.astype(np.float64)[x] * factor
    keep = (x % len(TABLE) != PADDING) if "padding" in name else np.ones(ROWS, bool)
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max}[name.split(", ")[1].split()[0]]
    bags = [rows[a:b][keep[a:b]] for a, b in zip(offsets, offsets[1:], strict=False)]
    return np.tanh([reduce(bag, axis=0) if len(bag) else np.zeros(WIDTH) for bag in bags])


@pytest.mark.unit
@pytest.mark.parametrize("name", NAMES)
def test_bags_compute_what_the_loop_does(name):
    model = model_of(name)
    assert {"Loop", "If", "SequenceEmpty"}.isdisjoint(n.op_type for n in model.graph.nodes)
    matrix = any(n.op_type == "Range" for n in model.graph.nodes)
    assert matrix == name.startswith("given")
    for *feeds, target in batches(name):
        loss = trainer_of(model, Recipe("mse", train=("table",))).train_step(*feeds, target)[0]
        assert float(loss) == pytest.approx(((meant(name, *feeds) - target) ** 2).mean(), rel=1e-6)


@pytest.mark.unit
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_embeddings(name):
    trainer = trainer_of(model_of(name), Recipe("mse", train=("table",)))
    assert max(max(differences(trainer, *feeds).values()) for feeds in batches(name)) < 1e-6


def test_trainers_compute_what_their_graphs_say(tmp_path):
    recipe = Recipe("mse", optimizer="sgd", train=("table",))
    made = {name: artifacts_of(model_of(name), recipe, registry()) for name in NAMES}
    assert max(farthest(made, {n: batches(n) for n in NAMES}, tmp_path).values()) < 1e-6


@pytest.mark.unit
@pytest.mark.parametrize(
    "name, old, new",
    [
        ("given, sum", "part = Slice (rows, begin, stop)", "part = Slice (rows, begin, after)"),
        ("given, sum", "(empty)", "(c)"),
        ("given, mean", "q = If (final)", "q = If (empty)"),
        ("given, max", "ReduceMax", "ReduceMin"),
        ("given, sum without padding", "e = Less (k2, stop)", "e = Less (k2, begin)"),
        ("given, sum without padding", "(found, place)", "(place, found)"),
        ("given, sum without padding", "Equal (size, zero)", "Equal (size, one)"),
    ],
)
def test_other_loops_stay_as_they_are(name, old, new):
    model = model_of(name, **{old: new})
    assert any(n.op_type == "Loop" for n in model.graph.nodes)
    with pytest.raises(Unsupported, match="SequenceEmpty"):
        artifacts_of(model, Recipe("mse", train=("table",)), registry())


@pytest.mark.unit
@pytest.mark.parametrize("old, new", [("Less (n2, bags)", "Identity (yes)"), ("(before, r)", "(before, n)")])
def test_loops_of_other_forms_stay_without_a_crash(monkeypatch, old, new):
    """Numbers stand where bags have operators."""
    assert old in MODEL
    monkeypatch.setitem(globals(), "MODEL", MODEL.replace(old, new))
    assert any(n.op_type == "Loop" for n in model_of("given, sum").graph.nodes)
