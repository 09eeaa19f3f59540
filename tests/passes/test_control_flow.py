"""If, Loop and Scan, unrolled: the nodes that are left, and that they compute what ONNX says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import trainers
from onnx.reference import ReferenceEvaluator

from minbuild.authoring.autodiff.backward import differentiate
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import Checkpoint, Graph, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.reference.interpreter import ReferenceTrainer

REGISTRY = registry()
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

IF = """
    m (float[3,4] x) => (float[3,4] y) <bool flag = {{FLAG}}> {
        y = If (flag) <
            then_branch = yes () => (float[3,4] a) <float[1] two = {2}> {
                inner = Mul (x, two)
                a = If (flag) <
                    then_branch = deep () => (float[3,4] d) { d = Add (inner, x) },
                    else_branch = other () => (float[3,4] e) { e = Identity (inner) }>
            },
            else_branch = no () => (float[3,4] b) { b = Neg (x) }>
    }"""
LOOP = """
    m (float[3,4] x) => (float[3,4] last, float[4,3,4] all)
    <int64 count = {4}, bool go = {1}, float[1] one = {1}> {
        last, all = Loop (count, go, x) <
            body = round (int64 i, bool before, float[3,4] v) => (bool after, float[3,4] w, float[3,4] slice) {
                after = Identity (before)
                number = Cast <to = 1> (i)
                step = Add (number, one)
                w = Mul (v, step)
                slice = Add (w, x)
            }>
    }"""
WHILE = """
    m (float[3,4] x) => (float[3,4] last, int64 rounds)
    <int64 zero = {0}, bool go = {1}, int64 most = {5}, int64 unit = {1}> {
        last, rounds = Loop (, go, x, zero) <
            body = round (int64 i, bool before, float[3,4] v, int64 n) => (bool after, float[3,4] w, int64 n2) {
                n2 = Add (n, unit)
                after = Less (n2, most)
                w = Add (v, x)
            }>
    }"""
SCAN = """
    m (float[3,4] x, float[4,2] z) => (float[3] state, float[4,3] sums, float[2,4] doubled)
    <float[3] start = {1, 2, 3}> {
        state, sums, doubled = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0],
            scan_input_directions = [1, 0], scan_output_axes = [0, -1], scan_output_directions = [0, 1],
            body = round (float[3] s, float[3] column, float[2] row) => (float[3] t, float[3] out, float[2] twice) {
                t = Add (s, column)
                out = Mul (t, t)
                twice = Add (row, row)
            }> (start, x, z)
    }"""
MODELS = {"if": IF.replace("{FLAG}", "1"), "else": IF.replace("{FLAG}", "0"), "loop": LOOP, "while": WHILE}
MODELS["scan"] = SCAN


def graph_of(text: str, version: int = 17) -> tuple[onnx.ModelProto, Graph]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}]>{text}')
    return model, read_graph(model.SerializeToString(), Path("model.onnx"))


def artifacts_of(graph: Graph) -> TrainingArtifacts:
    return TrainingArtifacts(graph, None, None, Checkpoint(()), {})


def looped(x: np.ndarray) -> list[np.ndarray]:
    """What LOOP computes: ONNX stacks slices along a new axis, its own evaluator along the first one there is."""
    states = [x * factor for factor in np.cumprod([1, 2, 3, 4])]
    return [states[-1], np.stack(states) + x]


def scanned(x: np.ndarray, z: np.ndarray) -> list[np.ndarray]:
    """What SCAN computes; ONNX's own evaluator knows no directions and axes."""
    states = np.array([1, 2, 3]) + np.cumsum(x[:, ::-1].T, axis=0)
    return [states[-1], states**2, 2 * z.T[:, ::-1]]


OWN = {"loop": looped, "scan": scanned}


def feeds_of(graph: Graph) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.standard_normal(t.shape).astype(t.element.dtype) for t in graph.inputs.values()]


@pytest.mark.parametrize("name", MODELS)
def test_unrolled_graphs_compute_what_onnx_says(name, tmp_path):
    model, graph = graph_of(MODELS[name])
    feeds = feeds_of(graph)
    named = dict(zip(graph.inputs, feeds, strict=True))
    wanted = OWN[name](*feeds) if name in OWN else ReferenceEvaluator(model).run(None, named)
    meaning = ReferenceTrainer(artifacts_of(graph)).train_step(*feeds)
    plan = trainers.plan_of(artifacts_of(graph), REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    found = trainers.session_of(library, plan, {}).run(0, feeds)
    for want, exact, device in zip(wanted, meaning, found, strict=True):
        np.testing.assert_allclose(exact, want, rtol=1e-6)
        np.testing.assert_allclose(device, want, rtol=1e-6)


def test_only_the_branch_that_is_taken_is_left():
    _, graph = graph_of(MODELS["else"])
    assert [c.op for c in lower(artifacts_of(graph), REGISTRY, {}).procedures[0].calls] == [
        ":Neg",
        ":Identity",
    ]


def test_loops_end_when_their_condition_says_so():
    _, graph = graph_of(WHILE)
    procedure = lower(artifacts_of(graph), REGISTRY, {}).procedures[0]
    assert [c.op for c in procedure.calls if c.op == ":Add"] == [":Add"] * 5
    assert procedure.values["rounds"].constant == 5


def test_gradients_flow_through_rounds():
    text = """
        m (float[3,4] x) => (float loss) <float[3] start = {1, 2, 3}> {
            state, out = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                body = round (float[3] s, float[3] column) => (float[3] t, float[3] o) {
                    t = Mul (s, column)
                    o = Add (t, s)
                }> (start, x)
            loss = ReduceSum <keepdims = 0> (out)
        }"""
    _, graph = graph_of(text)
    made = differentiate(graph, "loss", ["start"], REGISTRY, 17)
    seed = {"loss_grad": np.ones((), np.float32)}
    whole = Graph(
        graph.source,
        made.nodes,
        graph.inputs,
        {},
        (made.gradients["start"],),
        {**graph.initializers, **made.initializers, **seed},
    )
    (found,) = ReferenceTrainer(artifacts_of(whole)).train_step(X)
    states = np.cumprod(np.concatenate([np.ones((3, 1)), X], axis=1), axis=1)
    np.testing.assert_allclose(found, (states[:, 1:] + states[:, :-1]).sum(1), rtol=1e-5)


CHOSEN = """
    m (float[3,4] x, float[3,4] w, bool[1] flag) => (float[3,4] y, int64[2] which) {
        y, which = If (flag) <
            then_branch = yes () => (float[3,4] a, int64[2] p) <int64[2] p = {1, 2}> {
                positive = Mul (x, w)
                a = Log (positive)
            },
            else_branch = no () => (float[3,4] b, int64[2] q) <int64[2] q = {3, 4}> {
                total = ReduceSum <keepdims = 1> (x)
                large = Greater (total, w)
                every = Cast <to = 6> (large)
                least = ReduceMin <keepdims = 0> (every)
                deep = Cast <to = 9> (least)
                b = If (deep) <
                    then_branch = up () => (float[3,4] d) { d = Mul (total, w) },
                    else_branch = down () => (float[3,4] e) { e = Neg (w) }>
            }>
    }"""
UNTIL = """
    m (float[3,4] x, float most) => (float[3,4] last, int64 rounds)
    <int64 limit = {6}, bool go = {1}, int64 zero = {0}, int64 unit = {1}> {
        last, rounds = Loop (limit, go, x, zero) <
            body = round (int64 i, bool before, float[3,4] v, int64 n) => (bool after, float[3,4] w, int64 n2) {
                n2 = Add (n, unit)
                w = Mul (v, x)
                size = ReduceMax <keepdims = 0> (w)
                after = Less (size, most)
            }>
    }"""
DEPENDING = {  # models whose way depends on data, with inputs for each way
    "if": (CHOSEN, [[X * X + 0.5, X * X + 1, np.array([f])] for f in (True, False)]),
    "inner if": (CHOSEN, [[X - 0.9, X + s, np.array([False])] for s in (9, -20)]),
    "loop": (UNTIL, [[X + 1.5, np.float32(m)] for m in (0.1, 20, 500, 1e9)]),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_ways_that_depend_on_data_are_chosen_at_run_time(name, tmp_path):
    text, batches = DEPENDING[name]
    model, graph = graph_of(text)
    plan = trainers.plan_of(artifacts_of(graph), REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    session = trainers.session_of(library, plan, {})
    ways = set()
    for feeds in batches:
        feeds = [np.asarray(f, np.float32 if np.asarray(f).dtype.kind == "f" else None) for f in feeds]
        wanted = ReferenceEvaluator(model).run(None, dict(zip(graph.inputs, feeds, strict=True)))
        meaning = ReferenceTrainer(artifacts_of(graph)).train_step(*feeds)
        for want, exact, device in zip(wanted, meaning, session.run(0, feeds), strict=True):
            np.testing.assert_allclose(exact, want, rtol=1e-6)
            np.testing.assert_allclose(device, want, rtol=1e-6)
        ways.add(np.asarray(wanted[-1]).tobytes() + (np.asarray(wanted[0]) > 0).tobytes())
    assert len(ways) > 1


def gradient_of(graph: Graph, loss: str, name: str) -> ReferenceTrainer:
    made = differentiate(graph, loss, [name], REGISTRY, 17)
    seed = {f"{loss}_grad": np.ones((), np.float32)}
    constants = {**graph.initializers, **made.initializers, **seed}
    results = (loss, made.gradients[name])
    return ReferenceTrainer(
        artifacts_of(Graph(graph.source, made.nodes, graph.inputs, {}, results, constants))
    )


def test_no_gradient_comes_out_of_the_branch_that_was_not_taken():
    """That of a logarithm of zero is no number."""
    text = """
        m (float[4] x, bool flag) => (float loss) <float[4] w = {1, 2, 3, 4}> {
            scaled = Mul (x, w)
            y = If (flag) <then_branch = a () => (float[4] p) { p = Log (scaled) },
                           else_branch = b () => (float[4] q) { q = Mul (scaled, w) }>
            loss = ReduceSum <keepdims = 0> (y)
        }"""
    _, graph = graph_of(text)
    trainer, x, w = gradient_of(graph, "loss", "w"), np.array([1.0, 2, 0, -1]), np.arange(1, 5)
    np.testing.assert_allclose(trainer.train_step(np.abs(x) + 1, np.array(True))[1], 1 / w, rtol=1e-6)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(trainer.train_step(x, np.array(False))[1], 2 * x * w, rtol=1e-6)


def test_gradients_flow_through_the_rounds_that_ran():
    text = """
        m (float[2] x, float most) => (float loss) <float[2] w = {1.5, 2}, int64 limit = {5}, bool go = {1}> {
            last = Loop (limit, go, x) <body = r (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
                u = Mul (v, w)
                size = ReduceMax <keepdims = 0> (u)
                d = Less (size, most)
            }>
            loss = ReduceSum <keepdims = 0> (last)
        }"""
    _, graph = graph_of(text)
    trainer, x, w = gradient_of(graph, "loss", "w"), np.array([1.0, 1]), np.array([1.5, 2])
    for most, rounds in ((1, 1), (3, 2), (5, 3), (100, 5)):
        loss, found = trainer.train_step(x, np.array(most, np.float64))
        assert float(loss) == pytest.approx((x * w**rounds).sum())
        np.testing.assert_allclose(found, rounds * x * w ** (rounds - 1), rtol=1e-6)


REFUSED = {
    "output 'y' is float[2] or float[1], as it may be": """
        m (float[2] x, bool flag) => (float[k] y) <float[1] one = {1}> {
            y = If (flag) <then_branch = a () => (float[2] p) { p = Neg (x) },
                           else_branch = b () => (float[1] q) { q = Identity (one) }>
        }""",
    "node 'norm' (BatchNormalization) inside updates running statistics": """
        m (float[2,2] x, bool flag) => (float[2,2] y) <float[2] s = {1, 1}, float[2] v = {1, 1}> {
            y = If (flag) <
                then_branch = a () => (float[2,2] p) {
                    [norm] p, mean, var = BatchNormalization <training_mode = 1> (x, s, s, s, v)
                },
                else_branch = b () => (float[2,2] q) { q = Identity (x) }>
        }""",
    "whether it goes on depends on data, and it has no limit": """
        m (float[2] x, bool go) => (float[2] y) {
            y = Loop (, go, x) <body = r (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity (c)
                w = Add (v, v)
            }>
        }""",
    "and so does how many slices its scan outputs have": """
        m (float[2] x, bool go) => (float[2] y, float[n,2] z) <int64 limit = {3}> {
            y, z = Loop (limit, go, x) <
                body = r (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] u) {
                    d = Identity (c)
                    w = Add (v, v)
                    u = Neg (v)
                }>
        }""",
    "('n') depends on data, but must be known when the trainer is built. Where it follows from a size of an input, fix "
    "that with --dim NAME=...": """
        m (float[2] x, int64 n) => (float[2] y) {
            y = Loop (n, , x) <body = r (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity (c)
                w = Add (v, v)
            }>
        }""",
    "how often it runs is the free dimension steps": """
        m (float[2,steps] x) => (float[2] y) <float[2] start = {0, 0}, bool go = {1}> {
            y = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                body = r (float[2] s, float[2] v) => (float[2] t) {
                    t = If (go) <then_branch = a () => (float[2] p) { p = Add (s, v) },
                                 else_branch = b () => (float[2] q) { q = Sub (s, v) }>
                }> (start, x)
        }""",
    "it runs more than 4096 times": """
        m (float[2] x) => (float[2] y) <bool go = {1}> {
            y = Loop (, go, x) <body = r (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                d = Identity (c)
                w = Identity (v)
            }>
        }""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_depends_on_data_is_refused_by_name(reason):
    _, graph = graph_of(REFUSED[reason])
    with pytest.raises(Unsupported) as caught:
        lower(artifacts_of(graph), REGISTRY, {})
    assert any(reason in finding for finding in caught.value.findings), caught.value.findings
