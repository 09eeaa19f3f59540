"""The Python API on artifacts: the files that a script written for onnxruntime names."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import onnx
import pytest
from case_sets import GOLDEN, SHARED, load

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.library import TrainerError

CASE = load(GOLDEN / "mse")
FOLDER = CASE.folder


def opened(folder=FOLDER, kind="onnx", checkpoint=None) -> tuple[CheckpointState, Module, Optimizer]:
    """All three of a set, in the way of onnxruntime's documentation."""
    state = CheckpointState.load_checkpoint(checkpoint or folder / "checkpoint")
    module = Module(str(folder / f"training_model.{kind}"), state, str(folder / f"eval_model.{kind}"))
    return state, module, Optimizer(str(folder / f"optimizer_model.{kind}"), module)


def steps(module: Module, optimizer: Optimizer, count: int, case=CASE, first: int = 0) -> list[float]:
    losses = []
    for step in range(first, first + count):
        losses.append(float(np.ravel(module(*case.batch(step)))[0]))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


@pytest.mark.parametrize(
    "folder, kind",
    [(GOLDEN / "mse", "onnx"), (GOLDEN / "dense_ort", "ort"), (SHARED / "mlp_ort", "ort")],
    ids=["onnx", "ort", "mlp_ort"],
)
def test_training_from_files_takes_the_recorded_way(folder, kind):
    if not folder.is_dir():
        pytest.skip("larger cases are not here")
    case = load(folder)
    state, module, optimizer = opened(folder, kind)
    optimizer.set_learning_rate(case.meta["lr"])
    np.testing.assert_allclose(steps(module, optimizer, case.meta["steps"], case), case.losses(), rtol=1e-5)
    for name, wanted in case.recorded("param_final").items():
        np.testing.assert_allclose(state.parameters[name].data, wanted, rtol=1e-4, atol=1e-6)
    after = module.eval()(*case.eval_batch())
    np.testing.assert_allclose(np.ravel(after)[0], case.losses("eval_after")[0], rtol=1e-5)


def test_an_optimizer_may_come_late():
    state, module, optimizer = opened()
    straight = steps(module, optimizer, 2)
    late_state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    late = Module(FOLDER / "training_model.onnx", late_state)
    first = float(late(*CASE.batch(0)))
    with pytest.raises(TrainerError, match="no such graph"):
        Optimizer(None, late).step()
    added = Optimizer(FOLDER / "optimizer_model.onnx", late)
    added.step()
    late.lazy_reset_grad()
    assert [first, float(late(*CASE.batch(1)))] == straight
    for name, parameter in late_state.parameters:
        assert parameter.grad is not None and np.array_equal(parameter.grad, state.parameters[name].grad)


def test_optimizer_state_without_optimizer_is_kept(tmp_path):
    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint_final_opt")
    Module(FOLDER / "training_model.onnx", state)(*CASE.batch(0))
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    found, wanted = read_checkpoint(tmp_path / "saved"), read_checkpoint(FOLDER / "checkpoint_final_opt")
    assert found.groups[0].step == wanted.groups[0].step
    for name, moments in wanted.groups[0].moments.items():
        for moment, data in moments.items():
            assert np.array_equal(found.groups[0].moments[name][moment], data)


def test_saving_and_loading_goes_on_bit_for_bit(tmp_path):
    state, module, optimizer = opened()
    optimizer.set_learning_rate(0.02)
    steps(module, optimizer, 2)
    state.properties["note"] = "here"
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    wanted = steps(module, optimizer, 2, first=2)
    again, module, optimizer = opened(checkpoint=tmp_path / "saved")
    assert optimizer.get_learning_rate() == pytest.approx(0.02)
    assert dict(again.properties) == {"note": "here"}  # the learning rate is not the user's property
    assert steps(module, optimizer, 2, first=2) == wanted
    buffer = CheckpointState.load_checkpoint_from_buffer((tmp_path / "saved").read_bytes())
    assert dict(buffer.properties) == {"note": "here"}


def test_a_checkpoint_on_disk_is_the_same_whoever_opened_it(tmp_path):
    """Nothing is added to a checkpoint of a state that no module uses."""
    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    assert not read_checkpoint(tmp_path / "saved").properties


# ------------------------------------------------------------------------------------------ nominal checkpoints


@pytest.mark.skipif(not (SHARED / "mlp_nominal").is_dir(), reason="larger cases are not here")
def test_federated_learning_from_a_nominal_checkpoint(tmp_path):
    folder = SHARED / "mlp_nominal"
    case = load(folder)
    state, module, optimizer = opened(folder, checkpoint=folder / "nominal_checkpoint")
    optimizer.set_learning_rate(case.meta["lr"])
    assert module.get_parameters_size(False) == case.reference["fed_buffer"].size
    for early in (
        lambda: module(*case.batch(0)),
        optimizer.step,
        module.get_contiguous_parameters,
        lambda: module.copy_buffer_to_parameters(case.reference["fed_buffer"]),
        lambda: state.parameters["fc1.weight"].data,
        lambda: CheckpointState.save_checkpoint(state, tmp_path / "saved"),
        lambda: module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"]),
    ):
        with pytest.raises(BadInput, match="the checkpoint is nominal.*copy_buffer_to_parameters"):
            early()
    module.copy_buffer_to_parameters(case.reference["fed_buffer"], trainable_only=False)
    np.testing.assert_allclose(steps(module, optimizer, 3, case), case.losses("fed_loss"), rtol=1e-5)
    after = module.get_contiguous_parameters(trainable_only=False)
    np.testing.assert_allclose(after, case.reference["fed_buffer_after3"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(after.numpy(), after)
    assert type(after.numpy()) is np.ndarray
    CheckpointState.save_checkpoint(state, tmp_path / "saved", True)
    assert not read_checkpoint(tmp_path / "saved").nominal


def test_buffers_are_in_the_order_of_the_training_model():
    case = load(GOLDEN / "residual")
    state, module, _ = opened(GOLDEN / "residual")
    names = [n for n in case.artifacts.training.inputs if n in case.parameters]
    for trainable_only in (False, True):
        chosen = [
            state.parameters[n] for n in names if state.parameters[n].requires_grad or not trainable_only
        ]
        wanted = np.concatenate([p.data.ravel() for p in chosen])
        np.testing.assert_array_equal(module.get_contiguous_parameters(trainable_only), wanted)
        assert module.get_parameters_size(trainable_only) == wanted.size


# --------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("name, kind", [("mse", "onnx"), ("dense_ort", "ort"), ("embedding", "onnx")])
def test_export_writes_a_model_with_the_trained_parameters(name, kind, tmp_path):
    case = load(GOLDEN / name)
    state, module, optimizer = opened(GOLDEN / name, kind)
    steps_ = steps(module, optimizer, 1, case) if name != "embedding" else []
    output = "logits" if name == "embedding" else "output"
    module.export_model_for_inferencing(tmp_path / "model.onnx", [output])
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in model.graph.output] == [output] and len(steps_) < 2
    held = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    assert set(held) & {n for n, _ in state.parameters}
    for name_, parameter in state.parameters:
        if name_ in held:
            np.testing.assert_array_equal(held[name_], parameter.data)
    with pytest.raises(BadInput, match="no node makes 'nothing'"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["nothing"])


def test_export_needs_an_evaluation_model(tmp_path):
    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    module = Module(FOLDER / "training_model.onnx", state)
    with pytest.raises(BadInput, match="no evaluation model"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])
    with pytest.raises(TrainerError, match="no such graph"):
        module.eval()(*CASE.eval_batch())


# --------------------------------------------------------------------------------------------------------- arrays


class OnlyDlpack:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.asked = array, 0

    def __dlpack__(self, **arguments):
        self.asked += 1
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyNumpy:
    """Like onnxruntime's OrtValue."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        return self.array


def test_tensors_come_from_anywhere():
    _, module, _ = opened()
    wanted = module.eval()(*CASE.batch(0))
    for kind in (OnlyDlpack, OnlyNumpy, memoryview, lambda a: a.tolist() and a):
        assert module(*(kind(x) for x in CASE.batch(0))) == wanted
    given = OnlyDlpack(module.get_contiguous_parameters(True).numpy())
    module.copy_buffer_to_parameters(given)
    assert given.asked


def test_parameters_share_their_memory_by_dlpack():
    state, module, optimizer = opened()
    name = sorted(CASE.meta["requires_grad"])[0]
    steps(module, optimizer, 1)
    shared, before = np.from_dlpack(state.parameters[name]), state.parameters[name].data
    assert np.array_equal(shared, before)
    steps(module, optimizer, 1)
    assert not np.array_equal(shared, before) and np.array_equal(shared, state.parameters[name].data)
    state.parameters[name] = OnlyDlpack(before)
    assert np.array_equal(shared, before)
    module(*CASE.samples(100))  # moves the state; the memory stays with who has it
    del state, module, optimizer
    assert np.array_equal(shared, before)


# ----------------------------------------------------------------------------------------------- what cannot be


def test_what_is_wrong_is_said(tmp_path):
    state = CheckpointState.load_checkpoint(FOLDER / "checkpoint")
    with pytest.raises(BadInput, match="no such file"):
        Module(tmp_path / "training_model.onnx", state)
    (tmp_path / "training_model.onnx").write_bytes(b"damaged")
    with pytest.raises(BadInput, match="not a readable ONNX model"):
        Module(tmp_path / "training_model.onnx", state)
    with pytest.raises((BadInput, Unsupported)):
        Module(GOLDEN / "conv" / "training_model.onnx", state)
    module = Module(FOLDER / "training_model.onnx", state)
    with pytest.raises(BadInput, match="already belongs"):
        Module(FOLDER / "training_model.onnx", state)
    with pytest.raises(BadInput, match="no such file"):
        Optimizer(tmp_path / "optimizer_model.onnx", module)
    with pytest.raises(RuntimeError):  # as onnxruntime's
        module(*CASE.batch(0)[:1])
    shutil.rmtree(tmp_path)


# ------------------------------------------------------------------------------------------------------- threads


def test_sessions_on_several_threads_do_not_meet():
    """Eight sessions of one library train at once, as each would alone."""
    alone = [steps(*opened()[1:], 12)]
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        found[number] = steps(*opened()[1:], 12)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(8)] == alone * 8
