"""Random numbers: those of ONNX Runtime under the same seed, and what dropout does with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers
from agreement import check_gradients, close, gradients, loss_of
from case_sets import SHARED, load, trainer

from minbuild.errors import Unsupported
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.core.definition import OpContext
from minbuild.ops.core.graph_builder import GradientBuilder, named
from minbuild.planning.plan_encoding import encode_plan
from minbuild.planning.plan_outline import SessionPlan
from minbuild.training import onnx_backend
from minbuild.training.library import TRAIN, Session
from minbuild.training.resizing_session import ResizingSession

# The first 32 mask bits of Dropout with ratio 0.25 by seed, recorded from onnxruntime-training-cpu 1.19.2.
MASKS = {5: 0xEEEDCF9E, 6: 0xDCDC566E, 7: 0xFFBDDFF6, 8: 0x75F973F8}
X = np.arange(1, 61, dtype=np.float32).reshape(5, 12)
RATIO = np.array(0.25, np.float32)
YES = np.array(True)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: object) -> Node:
    """Names are separated by blanks; `-` is an absent one."""
    names = (tuple("" if n == "-" else n for n in text.split()) for text in (inputs, outputs))
    return Node(op, domain, 1 if domain else 22, f"{op} {outputs}", *names, attributes)


def plan_of(nodes, outputs: str, feeds, constants=None, shapes=None):
    """`shapes` are those of inputs that have free dimensions."""
    types = {n: TensorType(trainers.element_of(x), (shapes or {}).get(n, x.shape)) for n, x in feeds.items()}
    known = {"ratio": RATIO, "yes": YES, **(constants or {})}
    graph = Graph("training_model.onnx", tuple(nodes), types, {}, tuple(outputs.split()), known)
    return trainers.plan_of(
        TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {}), registry()
    )


def session_of(plan) -> Session:
    return trainers.session_of(onnx_backend.full_library(), plan, {})


def step(session: Session, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(session.names(TRAIN, True), session.run(TRAIN, list(feeds.values())), strict=True))


def bits(mask: np.ndarray) -> int:
    return sum(1 << i for i, kept in enumerate(mask.ravel()[:32]) if kept)


def dropped(mask: np.ndarray, ratio: float = 0.25) -> np.ndarray:
    return np.where(mask, X / np.float32(1 - ratio), 0)


def test_masks_are_onnx_runtimes():
    nodes = [node("Dropout", "x ratio yes", "y m"), node("Dropout", "y ratio yes", "z n")]
    session = session_of(plan_of(nodes, "y m n", {"x": X}))
    session.seed = 7
    found = step(session, x=X)
    assert (bits(found["m"]), bits(found["n"])) == (MASKS[7], MASKS[8])
    np.testing.assert_allclose(found["y"], dropped(found["m"]), rtol=2e-7)
    assert session.seed == 9
    again = step(session, x=X)
    assert (again["m"] != found["m"]).any() and (again["n"] != found["n"]).any()


def test_node_with_a_seed_has_draws_of_its_own():
    nodes = [node("Dropout", "x ratio yes", "y m", seed=5), node("Dropout", "y ratio yes", "z n")]
    session = session_of(plan_of(nodes, "m n", {"x": X}))
    session.seed = 8
    first, second = step(session, x=X), step(session, x=X)
    assert [bits(run["m"]) for run in (first, second)] == [MASKS[5], MASKS[6]]
    assert bits(first["n"]) == MASKS[8] and session.seed == 10


@pytest.mark.parametrize(
    ("op", "dtype", "recorded"),
    [
        (
            "RandomUniform",
            ElementType.FLOAT,
            (-1.999647855758667, -1.0807995796203613, 2.002239227294922, -1.3607439994812012),
        ),
        (
            "RandomUniform",
            ElementType.DOUBLE,
            (-1.0807995354576254, -1.3607440636117238, 2.8531633865464725, -1.4510877420125379),
        ),
        (
            "RandomNormal",
            ElementType.FLOAT,
            (0.34430062770843506, 1.529367446899414, -0.8783094882965088, 0.631293773651123),
        ),
        (
            "RandomNormal",
            ElementType.DOUBLE,
            (0.5312270219213451, 0.6017528039060533, 4.463404226126595, -0.7394369171591457),
        ),
    ],
)
def test_distributions_are_onnx_runtimes(op, dtype, recorded):
    bounds = {"low": -2.0, "high": 3.0} if op == "RandomUniform" else {"mean": 1.0, "scale": 2.0}
    drawing = node(op, "", "y", shape=(7, 11), seed=9.0, dtype=int(dtype), **bounds)
    found = step(session_of(plan_of([drawing], "y", {})))["y"]
    assert found.dtype == dtype.dtype
    np.testing.assert_allclose(found.ravel()[:4], recorded, rtol=4 * np.finfo(found.dtype).eps)


def test_distributions_have_their_moments():
    drawing = [
        node("RandomUniformLike", "x", "u", low=-1.0, high=3.0),
        node("RandomNormalLike", "x", "z", mean=2.0, scale=3.0),
        node("Bernoulli", "p", "b"),
        node("Multinomial", "logits", "c", sample_size=20_000),
    ]
    feeds = {
        "x": np.zeros((200, 100), np.float32),
        "p": np.full((200, 100), 0.3, np.float32),
        "logits": np.log(np.array([[0.1, 0.2, 0.7]], np.float32)),
    }
    found = step(session_of(plan_of(drawing, "u z b c", feeds)), **feeds)
    assert abs(found["u"].mean() - 1) < 0.05 and found["u"].min() >= -1 and found["u"].max() < 3
    assert abs(found["z"].mean() - 2) < 0.1 and abs(found["z"].std() - 3) < 0.1
    assert abs(found["b"].mean() - 0.3) < 0.02 and set(np.unique(found["b"])) == {0, 1}
    shares = np.bincount(found["c"].ravel(), minlength=3) / 20_000
    np.testing.assert_allclose(shares, (0.1, 0.2, 0.7), atol=0.02)


@pytest.mark.parametrize(("ratio", "trains"), [(0.25, False), (0.0, True)])
def test_nothing_is_drawn_where_nothing_is_dropped(ratio, trains):
    constants = {"ratio": np.array(ratio, np.float32), "yes": np.array(trains)}
    nodes = [node("Dropout", "x ratio yes", "y m"), node("Identity", "y", "z")]
    plan = plan_of(nodes, "z m", {"x": X}, constants)
    assert not any(k.stem == "random_numbers" for k in plan.kernels)
    found = step(session_of(plan), x=X)
    assert (found["z"] == X).all() and found["m"].all()


def test_ratio_may_be_an_input():
    plan = plan_of([node("Dropout", "x r yes", "y m")], "y m", {"x": X, "r": RATIO})
    session = session_of(plan)
    for ratio in (0.0, 0.5):
        found = step(session, x=X, r=np.array(ratio, np.float32))
        np.testing.assert_allclose(found["y"], dropped(found["m"], ratio), rtol=2e-7)
        assert found["m"].all() == (ratio == 0)
    with pytest.raises(Exception, match="value out of range"):
        step(session, x=X, r=np.array(1, np.float32))


def test_mode_must_be_known():
    feeds = {"x": X, "t": YES}
    with pytest.raises(Unsupported, match="whether it trains"):
        plan_of([node("Dropout", "x ratio t", "y")], "y", feeds)


def test_old_versions_never_drop():
    old = Node("Dropout", "", 7, "old", ("x",), ("y", "m"), {"ratio": 0.5})
    found = step(session_of(plan_of([old, node("Neg", "y", "z")], "z m", {"x": X})), x=X)
    assert (found["z"] == -X).all() and (found["m"] == 1).all() and found["m"].dtype == np.float32


@pytest.mark.parametrize("kind", ["Dropout", "BitmaskDropout"])
def test_gradient_has_the_mask_of_the_result(kind):
    domain = "" if kind == "Dropout" else "com.microsoft"
    inputs = tuple(TensorType(trainers.element_of(x), x.shape) for x in (X, RATIO, YES))
    ctx = OpContext({}, inputs, (None, RATIO, YES), 22)
    rule = registry().ops[f"{domain}:{kind}"].gradient
    assert rule is not None
    b = GradientBuilder(ctx, ("x", "ratio", "yes"), ("y",), ("dy",), {0}, "backward")
    backward = named(b, b.write(rule), ("dx",))
    forward = replace(node(kind, "x ratio yes", "y", domain), outputs=("y", b.saved[1]))
    mask = replace(node("Identity", "-", "m"), inputs=(b.saved[1],))
    nodes = [forward, *backward, mask]
    dy = np.linspace(-1, 1, X.size, dtype=np.float32).reshape(X.shape)
    session = session_of(plan_of(nodes, "y dx m", {"x": X, "dy": dy}))
    found = step(session, x=X, dy=dy)
    np.testing.assert_allclose(found["dx"], np.where(found["y"] != 0, dy / np.float32(0.75), 0), rtol=2e-7)
    if kind == "BitmaskDropout":
        assert found["m"].dtype == np.uint32 and found["m"].shape == (2,)
        assert int(found["m"][0]) == bits(found["y"] != 0)


def test_halves_are_dropped_too():
    half = X.astype(np.float16)
    plan = plan_of(
        [node("Dropout", "x r yes", "y m", seed=5)], "y m", {"x": half}, {"r": RATIO.astype(np.float16)}
    )
    found = step(session_of(plan), x=half)
    assert found["y"].dtype == np.float16 and bits(found["m"]) == MASKS[5]
    np.testing.assert_allclose(found["y"], dropped(found["m"]), rtol=1e-3)


def test_larger_batches_go_on_with_the_seed():
    """A session that grows starts anew; the numbers it draws must not."""
    plan = plan_of(
        [node("Dropout", "x ratio yes", "y m")], "m", {"x": X}, shapes={"x": (symbol("batch"), 12)}
    )
    growing_plan = SessionPlan.of(encode_plan(plan, {"batch": 5}))
    growing = ResizingSession(onnx_backend.full_library(), growing_plan, None)
    growing.session.seed = 6
    (small,), (large,) = (growing.run(TRAIN, [np.tile(X, (times, 1))]) for times in (1, 9))
    assert (bits(small), bits(large)) == (MASKS[6], MASKS[7])


def test_draws_go_on_from_a_checkpoint():
    """Those of each node that has a seed, and of all others."""
    nodes = [node("Dropout", "x ratio yes", f"y{i} m{i}", **({"seed": i} if i else {})) for i in range(3)]
    session = session_of(plan := plan_of(nodes, "m0 m1 m2", {"x": X}))
    session.seed = 6
    step(session, x=X)
    saved = session.checkpoint(True)
    seal = read_checkpoint(saved).seal
    assert plan.draw_bytes == 16 and seal is not None and len(seal.draws) == 3 and seal.draws[-1] == 7
    wanted = step(session, x=X)
    for data in (saved, write_checkpoint(read_checkpoint(saved))):
        resumed = Session(onnx_backend.full_library(), encode_plan(plan, {}), data)
        for name, mask in step(resumed, x=X).items():
            assert np.array_equal(mask, wanted[name]), name
    fewer = plan_of(nodes[:2], "m0 m1", {"x": X})
    other = Session(onnx_backend.full_library(), encode_plan(fewer, {}), saved, accept_any=True)
    assert other.seed == 0  # the counters of another model are not its own


@pytest.mark.skipif(not (SHARED / "bert_tiny_dropout").is_dir(), reason="needs the larger cases")
def test_seeded_run_is_onnx_runtimes():
    case = load(SHARED / "bert_tiny_dropout")
    session = trainer(case.folder).session(case.checkpoint)
    session.learning_rate, session.seed = case.rate, 7
    for index, wanted in enumerate(case.losses("seed7_loss")):
        close(loss_of(session.run(TRAIN, case.batch(index))), wanted, 2e-7)
        if index == 0:
            grads = case.recorded("seed7_grad_step1")
            recorded = {n: g for n, g in grads.items() if np.abs(g).max() > 1e-8}  # the others are zero
            check_gradients(case, gradients(session, recorded), recorded, 1e-6)
        session.optimizer_step()
        session.lazy_reset_grad()
