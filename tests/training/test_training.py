"""The Python API of a built trainer."""

from __future__ import annotations

import numpy as np
import pytest
from case_sets import GOLDEN, SHARED, load, trainer

from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.planning.plan_outline import PlanOutline, SessionPlan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from minbuild.training.library import EVAL, TRAIN, Library, TrainerError, arena_size
from minbuild.training.resizing_session import ResizingSession

CASE = load(GOLDEN / "mse")


@pytest.fixture
def folder(package):
    return package("mse")


@pytest.fixture
def state(folder):
    return CheckpointState.load_checkpoint(folder / "model/checkpoint")


@pytest.fixture
def module(folder, state):
    return Module(folder, state)


def trained(module: Module, steps: int, rate: float = 0.01) -> list[float]:
    """Losses of some steps on the recorded batches."""
    optimizer = Optimizer(None, module)
    optimizer.set_learning_rate(rate)
    losses = []
    for step in range(steps):
        losses.append(float(module(*CASE.batch(step))))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def test_training_takes_the_recorded_way(module, state):
    losses = trained(module, CASE.meta["steps"], CASE.meta["lr"])
    np.testing.assert_allclose(losses, CASE.losses(), rtol=1e-5)
    for name, wanted in CASE.recorded("param_final").items():
        np.testing.assert_allclose(state.parameters[name].data, wanted, rtol=1e-4, atol=1e-6)
    after = module.eval()(*CASE.eval_batch())
    assert isinstance(after, np.ndarray)
    np.testing.assert_allclose(float(after), CASE.losses("eval_after")[0], rtol=1e-5)
    assert module.train() is module and module.training


def test_several_outputs_come_as_a_tuple(package):
    case, folder = load(GOLDEN / "embedding"), package("embedding")
    module = Module(folder, CheckpointState.load_checkpoint(folder / "model/checkpoint"))
    outputs = module(*case.batch(0))
    assert isinstance(outputs, tuple) and len(outputs) == len(module.output_names()) > 1
    assert module.input_names() == case.inputs


def test_a_plan_or_its_package_opens_a_module(folder, state):
    module = Module(folder / "model/trainer.plan", state, eval_model_uri="unused", session_options=object())
    assert np.isfinite(module(*CASE.batch(0)))


def test_missing_package_parts_are_named(folder, state, tmp_path):
    with pytest.raises(BadInput, match=r"trainer\.plan: .*minbuild reduce"):
        Module(tmp_path, state)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/trainer.plan").write_bytes((folder / "model/trainer.plan").read_bytes())
    (tmp_path / "lib/mips-linux").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"only for mips-linux\. Reduce again with --target"):
        Module(tmp_path, state)
    with pytest.raises(BadInput, match="cuda"):
        Module(folder, state, device="cuda:0")


def test_a_library_that_is_none_is_an_error(tmp_path):
    (tmp_path / "no.so").write_bytes(b"no library")
    with pytest.raises(BadInput, match="cannot load"):
        Library(tmp_path / "no.so")


def test_a_state_serves_one_module(folder, state, module):
    with pytest.raises(BadInput, match="already belongs"):
        Module(folder, state)


def test_wrong_inputs_are_errors(module):
    first, *rest = CASE.batch(0)
    with pytest.raises(TrainerError, match="bad shape"):
        module(first.astype(np.float64), *rest)
    with pytest.raises(TrainerError, match="bad shape"):
        module(first[..., :-1], *rest)
    with pytest.raises(TrainerError, match="invalid argument"):
        module(first)
    with pytest.raises(BadInput, match="cannot be an input"):
        module(first.astype(np.complex64), *rest)
    assert np.isfinite(module(first, *rest))


# ------------------------------------------------------------------------------------------------ parameters


def test_parameters_are_read_and_written(folder):
    state = CheckpointState.load_checkpoint(folder / "model/checkpoint")
    name = sorted(CASE.meta["requires_grad"])[0]
    assert state.parameters[name].grad is None
    state.parameters[name].data = np.full_like(state.parameters[name].data, 0.25)
    module = Module(folder, state)
    assert (state.parameters[name].data == 0.25).all()  # written before there was a module
    state.parameters[name] = np.full_like(state.parameters[name].data, 0.5)
    assert (module._device.session.parameter(name) == 0.5).all()
    assert not state.parameters[name].grad.any()
    module(*CASE.batch(0))
    assert state.parameters[name].grad.any() and state.parameters[name].requires_grad
    copy = state.parameters[name].data
    copy[...] = 7
    assert not (state.parameters[name].data == 7).any()


def test_parameters_behave_as_a_mapping(state, module):
    names = sorted(CASE.meta["parameters"])
    assert [n for n, _ in state.parameters] == names and len(state.parameters) == len(names)
    assert names[0] in state.parameters and "nobody" not in state.parameters
    assert repr(names[0]) in repr(state.parameters) and "requires_grad" in repr(state.parameters[names[0]])
    assert state.parameters[names[0]].name == names[0]
    with pytest.raises(KeyError):
        state.parameters["nobody"]
    with pytest.raises(BadInput, match="Convert it"):
        state.parameters[names[0]].data = np.zeros(3)


def test_the_contiguous_buffer_goes_out_and_in(state, module):
    size = module.get_parameters_size()
    assert size == sum(
        np.prod(CASE.meta["parameters"][n]["shape"], dtype=int) for n in CASE.meta["requires_grad"]
    )
    buffer = module.get_contiguous_parameters(trainable_only=True)
    assert buffer.dtype == np.float32 and buffer.shape == (size,)
    first = state.parameters[CASE.meta["requires_grad"][0]].data
    np.testing.assert_array_equal(buffer[: first.size], first.ravel())  # in the training graph's order
    module.copy_buffer_to_parameters(np.arange(size, dtype=np.float32))
    np.testing.assert_array_equal(module.get_contiguous_parameters(True), np.arange(size))
    for wrong in (buffer[:-1], buffer.astype(np.float64)):
        with pytest.raises(BadInput, match="the buffer is"):
            module.copy_buffer_to_parameters(wrong)


# ----------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_resumes_bit_for_bit(folder, state, module, tmp_path):
    trained(module, 3)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    straight = trained(module, 3)
    again = Module(folder, CheckpointState.load_checkpoint(tmp_path / "saved"))
    assert Optimizer(None, again).get_learning_rate() == pytest.approx(0.01)  # which onnxruntime forgets
    assert again._device.session.step_count == 3
    assert trained(again, 3) == straight
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]


def test_optimizer_state_is_saved_when_asked_for(state, module, tmp_path):
    trained(module, 2)
    CheckpointState.save_checkpoint(state, tmp_path / "without")
    CheckpointState.save_checkpoint(state, tmp_path / "with", True)
    assert read_checkpoint(tmp_path / "without").groups == ()
    (group,) = read_checkpoint(tmp_path / "with").groups
    assert group.step == 2 and set(group.moments) == set(CASE.meta["requires_grad"])


def test_properties_are_kept(folder, state, tmp_path):
    state.properties["epoch"] = 3
    state.properties["loss"] = 0.5
    state.properties["note"] = "halfway"
    state.properties["flag"] = True  # stored as a number, as onnxruntime does
    module = Module(folder, state)
    trained(module, 1)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", True)
    loaded = CheckpointState.load_checkpoint(tmp_path / "saved")
    assert dict(loaded.properties) == {"epoch": 3, "flag": 1, "loss": 0.5, "note": "halfway"}
    assert "epoch" in loaded.properties and len(loaded.properties) == 4 and "epoch" in repr(loaded.properties)
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(loaded.parameters[name].data, parameter.data)
    with pytest.raises(KeyError):
        loaded.properties["nothing"]
    with pytest.raises(TypeError):
        loaded.properties["list"] = []  # type: ignore[assignment]


def test_a_state_without_module_is_saved_as_it_is(state, tmp_path):
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    for name, parameter in CheckpointState.load_checkpoint(tmp_path / "saved").parameters:
        np.testing.assert_array_equal(parameter.data, state.parameters[name].data)


def test_a_place_that_cannot_be_written_is_an_error(state, module, tmp_path):
    with pytest.raises(BadInput, match="cannot be written"):
        CheckpointState.save_checkpoint(state, tmp_path / "no" / "where")


# ------------------------------------------------------------------------------------------- sizes of batches


def wide(count: int, seed: int = 0) -> list[np.ndarray]:
    return [
        x + np.random.default_rng(seed).normal(0, 0.1, x.shape).astype(x.dtype) for x in CASE.samples(count)
    ]


def test_batches_larger_than_planned_keep_the_state(module):
    exact = ReferenceTrainer(CASE.artifacts)
    exact.learning_rate = 0.01
    optimizer = Optimizer(None, module)
    optimizer.set_learning_rate(0.01)
    for count in (2, 50, 3, 200, 1):
        np.testing.assert_allclose(module(*wide(count)), exact.train_step(*wide(count))[0], rtol=1e-5)
        for step in (optimizer.step, module.lazy_reset_grad, exact.optimizer_step, exact.lazy_reset_grad):
            step()
    assert optimizer.get_learning_rate() == pytest.approx(0.01)
    assert module._device.session.step_count == 5


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("between", ["nothing", "evaluation"])
def test_gradients_survive_growing(module, state, reset, between):
    exact = ReferenceTrainer(CASE.artifacts)
    for trainer_ in (exact.train_step, module):
        trainer_(*wide(4))
    if between == "evaluation":
        module.eval()(*wide(100))
        module.train()
    if reset:
        module.lazy_reset_grad()
        exact.lazy_reset_grad()
    for count in (100, 400, 5):
        for trainer_ in (exact.train_step, module):
            trainer_(*wide(count, seed=count))
    for name, gradient in exact.gradients.items():
        allowed = 1e-5 * np.abs(gradient).max()
        np.testing.assert_allclose(state.parameters[name].grad, gradient, rtol=0, atol=allowed)


def test_impossible_batches_stay_errors(module):
    first, second = wide(2)
    with pytest.raises(TrainerError, match="bad shape"):
        module(first[:0], second[:0])
    with pytest.raises(TrainerError, match="bad shape"):
        module(first, second[:1])


def test_free_dimensions_are_read_from_the_plan():
    built = trainer(GOLDEN / "mse")
    outline = PlanOutline.of(built.data)
    assert outline.sizes == (32,)
    assert all(axes[0] == 0 and set(axes[1:]) == {None} for graph in outline.inputs[:2] for axes in graph)
    assert arena_size(built.library, built.data, [64]) > arena_size(built.library, built.data, [1])
    with pytest.raises(TrainerError):
        arena_size(built.library, b"no plan", None)


def test_a_session_grows_only_for_lack_of_memory():
    built = trainer(GOLDEN / "mse")
    growing = ResizingSession(built.library, SessionPlan.of(built.data), CASE.checkpoint)
    before = growing.session
    growing.run(TRAIN, wide(32))
    assert growing.session is before
    growing.run(EVAL, wide(33))
    assert growing.session is not before


# ---------------------------------------------------------------------------------------------- learning rate


def scheduled(module: Module, warmup: int, total: int, initial: float, steps: int) -> list[float]:
    optimizer = Optimizer(None, module)
    scheduler = LinearLRScheduler(optimizer, warmup, total, initial)
    rates = [optimizer.get_learning_rate()]
    for step in range(steps):
        module(*CASE.batch(step))
        optimizer.step()
        module.lazy_reset_grad()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    return rates


def test_the_scheduler_means_what_it_says(module):
    rates = scheduled(module, warmup_step_count := 2, 6, 0.5, 8)
    assert warmup_step_count == 2
    np.testing.assert_allclose(rates, [0, 0.25, 0.5, 0.375, 0.25, 0.125, 0, 0, 0], rtol=1e-6)


def test_the_scheduler_without_warmup_starts_at_the_top(module):
    np.testing.assert_allclose(scheduled(module, 0, 4, 1.0, 5), [1, 0.75, 0.5, 0.25, 0, 0], rtol=1e-6)


@pytest.mark.skipif(not (SHARED / "mlp").is_dir(), reason="larger cases are not here")
@pytest.mark.parametrize("name", ["mlp", "mlp_sgd"])
def test_the_scheduler_repeats_recorded_runs(name, tmp_path):
    """`schedc` was recorded with counts that onnxruntime swapped back into their right order."""
    case, folder = load(SHARED / name), SHARED / name
    meta = case.meta["schedc"]
    module = Module(folder / "training_model.onnx", CheckpointState.load_checkpoint(folder / "checkpoint"))
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    counts = meta["effective_warmup"], meta["effective_total"]
    scheduler = LinearLRScheduler(optimizer, *counts, meta["python_args"]["initial_lr"])
    rates, losses = [optimizer.get_learning_rate()], []
    for step in range(len(case.losses("schedc_loss"))):
        losses.append(float(module(*case.batch(step)).ravel()[0]))
        optimizer.step()
        module.lazy_reset_grad()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, case.reference["schedc_lr"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(losses, case.losses("schedc_loss"), rtol=2e-5)
