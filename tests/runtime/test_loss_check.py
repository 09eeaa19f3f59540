"""`--finite-checks loss`: a training step with a loss that is not finite fails and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import trainers
from commands import FREE, SMALL

from minbuild.errors import Unsupported
from minbuild.ir import Checkpoint, ElementType, Graph, Node, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite.loss_check import CHECK, check_loss
from minbuild.planning.compile import compile_model
from minbuild.training.library import TRAIN, Session, TrainerError


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A trainer of the set with a free batch that checks its loss."""
    model = compile_model(FREE, {}, {}, options=PlanOptions(checks_loss=True))
    contents = trainers.contents_of([model.plan])
    library = trainers.library_of(contents, model.registry, tmp_path_factory.mktemp("checked"))
    return Session(library, model.plan_bytes, model.checkpoint)


def batch() -> list[np.ndarray]:
    with np.load(FREE / "reference.npz") as recorded:
        names = [n for n in recorded.files if n.startswith("in/")]
        return [recorded[n][0] for n in names]


def state(session: Session) -> dict[str, bytes]:
    """Parameters and gradients."""
    trained = [n for n, p in session.parameters.items() if p.gradient]
    parameters = {n: session.parameter(n).tobytes() for n in session.parameters}
    return parameters | {f"gradient of {n}": session.gradient(n).tobytes() for n in trained}


@contextmanager
def spoilt(session: Session, value: float) -> Iterator[None]:
    """The last parameter, a bias of the scores, is not finite for a while."""
    bias = session.parameter([n for n, p in session.parameters.items() if p.gradient][-1])
    kept = bias.copy()
    bias[0] = value
    yield
    bias[...] = kept


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_with_a_lost_loss_changes_nothing(session, value):
    session.run(TRAIN, batch())
    with spoilt(session, value):
        before = state(session)
        with pytest.raises(TrainerError, match="loss_is_finite<float>: value out of range"):
            session.run(TRAIN, batch())
        assert state(session) == before


def test_a_refused_step_leaves_the_reset_for_the_next_one(session):
    session.lazy_reset_grad()
    clean = session.run(TRAIN, batch())[0]
    first = state(session)
    session.lazy_reset_grad()
    with spoilt(session, np.nan), pytest.raises(TrainerError):
        session.run(TRAIN, batch())
    assert np.array_equal(session.run(TRAIN, batch())[0], clean)
    assert state(session) == first


def test_it_is_off_by_default_and_then_absent():
    stems = {kernel.stem for kernel in compile_model(SMALL, {}, {}).plan.kernels}
    checked = {
        kernel.stem
        for kernel in compile_model(SMALL, {}, {}, options=PlanOptions(checks_loss=True)).plan.kernels
    }
    assert checked - stems == {"loss_is_finite"}


def test_what_leads_to_the_loss_comes_first():
    """Here the file has the gradient's node before that of the loss."""
    x = TensorType(ElementType.FLOAT, (symbol("batch"),))
    nodes = (
        Node("Relu", "", 14, "early", ("x",), ("other",), {}),
        Node("ReduceSum", "", 13, "loss", ("x",), ("sum",), {"keepdims": 0}),
    )
    graph = Graph("training_model.onnx", nodes, {"x": x}, {}, ("sum", "other"), {})
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    (procedure,) = check_loss(lower(artifacts, registry(), {}), registry()).procedures
    assert [call.op for call in procedure.calls] == [":ReduceSum", CHECK, ":Relu"]
    assert procedure.outputs == ("sum", "other")


def test_a_first_output_that_is_no_loss_is_refused():
    x = TensorType(ElementType.INT64, (3,))
    graph = Graph(
        "training_model.onnx", (Node("Neg", "", 13, "n", ("x",), ("y",), {}),), {"x": x}, {}, ("y",), {}
    )
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint((trainers.TRAINED,)), {})
    with pytest.raises(Unsupported, match="Put the loss first, or leave loss out"):
        check_loss(lower(artifacts, registry(), {}), registry())
