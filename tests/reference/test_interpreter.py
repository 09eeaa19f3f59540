"""The float64 interpreter of artifacts, against ONNX Runtime's recorded numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from case_sets import GOLDEN, load

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import ElementType, Node, TensorType
from minbuild.reference.interpreter import ReferenceTrainer

pytestmark = pytest.mark.unit

SETS = sorted(p.parent.name for p in GOLDEN.glob("*/meta.json"))


@pytest.mark.parametrize("name", SETS)
def test_it_takes_the_recorded_way(name):
    case = load(GOLDEN / name)
    exact = ReferenceTrainer(case.artifacts)
    exact.learning_rate = case.rate
    allowed = 4 * max(*case.meta["noise"]["loss_per_step"], 2.0**-22)
    np.testing.assert_allclose(
        exact.eval_step(*case.eval_batch())[0].item(), case.losses("eval_before")[0], atol=allowed
    )
    for step, wanted in enumerate(case.losses()):
        found = exact.train_step(*case.batch(step))[0]
        assert abs(found.item() - wanted) <= allowed, f"step {step}"
        if step == 0:
            for parameter, gradient in case.recorded("grad_step1").items():
                limit = 2e-5 * np.abs(gradient).max()
                np.testing.assert_allclose(exact.gradients[parameter], gradient, rtol=0, atol=limit)
        exact.optimizer_step()
        exact.lazy_reset_grad()


def test_it_resumes_from_optimizer_state():
    case = load(GOLDEN / "dense")
    exact = ReferenceTrainer(case.artifacts)
    exact.load(case.trained[1])
    exact.learning_rate = case.rate
    assert exact.step_count == case.meta["steps"]
    exact.train_step(*case.batch(exact.step_count))
    exact.optimizer_step()
    for parameter, wanted in case.recorded("resume1_param").items():
        np.testing.assert_allclose(exact.parameters[parameter], wanted, rtol=1e-5, atol=1e-7)


def test_gradients_add_up_until_they_are_reset():
    case = load(GOLDEN / "mse")
    exact = ReferenceTrainer(case.artifacts)
    exact.train_step(*case.batch(0))
    once = {n: g.copy() for n, g in exact.gradients.items()}
    exact.train_step(*case.batch(0))
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(gradient, 2 * once[name])
    exact.lazy_reset_grad()
    exact.train_step(*case.batch(0))
    for name, gradient in exact.gradients.items():
        np.testing.assert_array_equal(gradient, once[name])


def test_a_split_without_sizes_has_as_many_parts_as_outputs():
    """Before opset 18 it has no `num_outputs` (KeyError)."""
    case = load(GOLDEN / "mse")
    node = Node("Split", "", 13, "split", ("x",), ("a", "b"), {"axis": 1})
    inputs = {"x": TensorType(ElementType.FLOAT, (2, 4))}
    graph = replace(case.artifacts.training, nodes=(node,), outputs=("a", "b"), inputs=inputs)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    parts = ReferenceTrainer(replace(case.artifacts, training=graph)).train_step(x)
    np.testing.assert_array_equal(np.concatenate(parts, 1), x)


def test_constants_of_many_elements_are_computed():
    """More than stand in a plan (TypeError)."""
    case = load(GOLDEN / "mse")
    nodes = (
        Node("Shape", "", 25, "shape", ("x",), ("n",), {}),
        Node("ConstantOfShape", "", 25, "fill", ("n",), ("y",), {"value": np.array([2.5], np.float32)}),
    )
    inputs = {"x": TensorType(ElementType.FLOAT, (90, 91))}
    graph = replace(case.artifacts.training, nodes=nodes, outputs=("y",), inputs=inputs)
    (y,) = ReferenceTrainer(replace(case.artifacts, training=graph)).train_step(np.zeros((90, 91)))
    np.testing.assert_array_equal(y, np.full((90, 91), 2.5))


def test_real_numbers_may_be_single():
    """The result of a step in float32, beside the right one."""
    case = load(GOLDEN / "mse")
    single, exact = (
        ReferenceTrainer(case.artifacts, real=e) for e in (ElementType.FLOAT, ElementType.DOUBLE)
    )
    losses = [float(trainer.train_step(*case.batch(0))[0]) for trainer in (single, exact)]
    assert {p.dtype for p in single.parameters.values()} == {np.dtype(np.float32)}
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_what_is_missing_is_said():
    case = load(GOLDEN / "mse")
    with pytest.raises(BadInput, match="takes 2 inputs"):
        ReferenceTrainer(case.artifacts).train_step()
    bare = replace(case.artifacts, evaluation=None, optimizer=None)
    with pytest.raises(BadInput, match="no evaluation model"):
        ReferenceTrainer(bare).eval_step()
    with pytest.raises(BadInput, match="no optimizer model"):
        ReferenceTrainer(bare).optimizer_step()
    node = replace(case.artifacts.training.nodes[0], op_type="Nonesuch")
    strange = replace(case.artifacts.training, nodes=(node,))
    with pytest.raises(Unsupported, match="Nonesuch.*no reference"):
        ReferenceTrainer(replace(case.artifacts, training=strange)).train_step(*case.batch(0))
    nominal = replace(case.artifacts.checkpoint.parameters[0], data=None)
    with pytest.raises(BadInput, match="nominal"):
        ReferenceTrainer(
            replace(case.artifacts, checkpoint=replace(case.artifacts.checkpoint, parameters=(nominal,)))
        )
