"""Generates artifacts with ONNX Runtime's own tool and records how ONNX Runtime trains them. Runs in the
environment that make_artifacts.py prepares: Python 3.11, onnxruntime-training-cpu 1.19.2, no PyTorch."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from forward import ARTIFACTS, CASES, Case

onnxruntime.set_default_logger_severity(3)  # its graph tools are chatty
if "onnxruntime.training" not in sys.modules:
    # The package's own __init__ imports PyTorch for parts nobody needs here; its submodules do not.
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [f"{onnxruntime.__path__[0]}/training"]
    sys.modules["onnxruntime.training"] = package

from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs import Checkpoint as wire  # noqa: E402
from onnxruntime.training import artifacts, onnxblock  # noqa: E402
from onnxruntime.training.api import CheckpointState, Module, Optimizer  # noqa: E402

STEPS, BATCHES, MORE, ULP_RUNS = 8, 4, 3, 5
_OPERATORS = """
    Abs Add And ArgMax BatchNormalization Cast Clip Concat Constant Conv Div Expand Flatten Gather Gemm
    GlobalAveragePool GreaterOrEqual Identity LessOrEqual Log MaxPool MaxPoolGrad Mul Neg Pow ReduceMean
    ReduceSum Relu Reshape Shape Sigmoid Sign Size Softmax SoftmaxCrossEntropyLoss Sub Sum Tanh AdamWOptimizer
    BatchNormInternal BatchNormalizationGrad ConcatTraining ConvGrad GatherGrad InPlaceAccumulatorV2
    InplaceClipGradNorm ReluGrad SGDOptimizerV2 Scale SigmoidGrad SoftmaxCrossEntropyLossGrad SplitTraining
    TanhGrad
"""
REQUIRED = frozenset(_OPERATORS.split())  # what the golden sets must use between them


class Weighted(onnxblock.Block):
    """0.6 * mean squared error + 0.4 * mean absolute error."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [(0.6, onnxblock.loss.MSELoss()), (0.4, onnxblock.loss.L1Loss())]
        self.mul, self.add = onnxblock.blocks.Mul(), onnxblock.blocks.Add()

    def build(self, prediction: str) -> str:
        constant = onnxblock.blocks.Constant
        terms = [self.mul(constant(w)(), loss(prediction, "target")) for w, loss in self.parts]
        return self.add(*terms)


def generate(case: Case, folder: Path) -> dict:
    """Write the four artifacts of `case` and return what meta.json says about the model."""
    net, model = case.build()
    folder.mkdir(parents=True, exist_ok=True)
    loss = Weighted() if case.loss == "weighted" else artifacts.LossType[case.loss]
    if case.optimizer == "clipped":
        clip = onnxblock.optim.ClipGradNorm(0.5)
        optimizer = onnxblock.optim.AdamW(weight_decay=0.01, eps=1e-8, clip_grad=clip)
    else:
        optimizer = artifacts.OptimType[case.optimizer]
    trainable = [w for w in net.weights if w not in net.frozen]
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=[w for w in net.weights if w in net.frozen],
        loss=loss,
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=case.extra_outputs or None,
        loss_input_names=case.loss_inputs or None,
    )
    return {
        "name": case.name,
        "title": case.title,
        "opset": model.opset_import[0].version,
        "loss": case.loss,
        "optimizer": case.optimizer,
        "lr": case.lr,
        "batch": case.batch,
        "steps": STEPS,
        "n_batches": BATCHES,
        "input_names": list(case.inputs),
        "parameters": {
            n: {"shape": list(w.shape), "dtype": str(w.dtype), "requires_grad": n not in net.frozen}
            for n, w in sorted(net.weights.items())
        },
        "requires_grad": trainable,
        "frozen": [w for w in net.weights if w in net.frozen],
    }


def draw(case: Case, count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` batches of every input. Labels follow from the first input, so there is something to learn."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, text in case.inputs.items():
        kind, *numbers = text.split()
        shape = (count, case.batch, *(int(n) for n in numbers))
        if kind == "normal":
            found[name] = rng.standard_normal(shape).astype(np.float32)
        elif kind == "unit":
            found[name] = (rng.random(shape) < 0.5).astype(np.float32)
        elif kind == "index":
            found[name] = rng.integers(0, int(numbers[0]), shape[:2])
        else:
            flat = next(iter(found.values())).reshape(count, case.batch, -1)
            found[name] = np.argmax(flat[..., : int(numbers[0])], axis=-1)
    return found


class Run:
    """One training session from a checkpoint. Step i trains on batch i, updates, and resets the gradients."""

    def __init__(self, folder: Path, checkpoint: str, lr: float, data: dict[str, np.ndarray]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.data, self.at = data, 0
        self.state = CheckpointState.load_checkpoint(folder / checkpoint)
        evaluation = folder / "eval_model.onnx"
        with tempfile.TemporaryDirectory() as scratch:
            repaired = Path(scratch) / "eval_model.onnx"
            onnx.save(loadable(onnx.load(evaluation)), repaired)
            self.module = Module(
                folder / "training_model.onnx", self.state, repaired, "cpu", session_options=options
            )
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.optimizer.set_learning_rate(lr)

    def train(self) -> list[np.ndarray]:
        """Forward and backward on the next batch; loss first, then further outputs."""
        self.module.train()
        batch = [v[self.at % BATCHES] for v in self.data.values()]
        self.at += 1
        return outputs(self.module(*batch))

    def update(self) -> None:
        self.optimizer.step()
        self.module.lazy_reset_grad()

    def evaluate(self, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.module.eval()
        return outputs(self.module(*batch.values()))

    def parameters(self, names: list[str]) -> dict[str, np.ndarray]:
        return {n: np.array(self.state.parameters[n].data) for n in names}

    def gradients(self, names: list[str]) -> dict[str, np.ndarray]:
        return {n: np.array(self.state.parameters[n].grad) for n in names}

    def moments(self) -> dict[str, np.ndarray]:
        """Optimizer state, which ONNX Runtime shows in saved files only."""
        with tempfile.TemporaryDirectory() as scratch:
            CheckpointState.save_checkpoint(self.state, f"{scratch}/c", include_optimizer_state=True)
            group = wire.Checkpoint.GetRootAs(Path(f"{scratch}/c").read_bytes()).OptimizerGroups(0)
        found = {}
        for state in (group.OptimizerStates(i) for i in range(group.OptimizerStatesLength())):
            for tensor in (state.Momentums(i) for i in range(state.MomentumsLength())):
                values = tensor.RawDataAsNumpy().view("<f4").reshape([int(d) for d in tensor.DimsAsNumpy()])
                found[f"{state.ParamName().decode()}/{tensor.Name().decode()}"] = values.copy()
        return dict(sorted(found.items()))


def outputs(result: object) -> list[np.ndarray]:
    """The outputs as arrays. The first, the loss, becomes a scalar: composed ones have an axis of size 1."""
    loss, *others = result if isinstance(result, (tuple, list)) else [result]
    return [np.array(loss).reshape(()), *(np.array(o) for o in others)]


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inference-mode BatchNormalization has one output; generated eval models have three and do not load."""
    for node in model.graph.node:
        training = any(a.name == "training_mode" and a.i for a in node.attribute)
        if node.op_type == "BatchNormalization" and not training:
            del node.output[1:]
    return model


def record(case: Case, folder: Path) -> None:
    """Fill `folder` with artifacts, reference.npz, meta.json and the final checkpoint with its state."""
    meta = generate(case, folder)
    data = draw(case, BATCHES, 100)
    test = {n: v[0] for n, v in draw(case, 1, 200).items()}
    run = Run(folder, "checkpoint", case.lr, data)
    ref = named("in", data) | named("eval_in", test)
    moving = trajectory(case, meta, run, test, ref)
    CheckpointState.save_checkpoint(run.state, folder / "checkpoint_final_opt", include_optimizer_state=True)
    ref["loss_continue"] = more(run)[0]

    trained = meta["requires_grad"]
    resumed = Run(folder, "checkpoint_final_opt", case.lr, data)
    resumed.at = STEPS
    ref["loss_resume_opt"], gradients, parameters = more(resumed, [*trained, *moving], trained)
    ref |= named("resume1_grad", gradients) | named("resume1_param", parameters)
    meta |= {
        "inputs": {n: {"shape": list(v.shape[1:]), "dtype": str(v.dtype)} for n, v in data.items()},
        "train_output_names": user_outputs(resumed.module.train()),
        "eval_output_names": user_outputs(resumed.module.eval()),
        "forward_changes_params": moving,
        "noise": noise(case, folder, data, ref, trained, moving),
        "versions": {m.__name__: m.__version__ for m in (onnx, onnxruntime, np)},
        "machine": platform.machine(),
    }
    if case.ort:
        convert(folder)
    np.savez_compressed(folder / "reference.npz", **ref)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def convert(folder: Path) -> None:
    """Replace the ONNX files by what ONNX Runtime's converter makes of them: its optimiser fuses nodes on the way."""
    module = "onnxruntime.tools.convert_onnx_models_to_ort"
    command = [sys.executable, "-m", module, str(folder), "--optimization_style", "Fixed"]
    subprocess.run(command, check=True, capture_output=True)
    for path in (*folder.glob("*.onnx"), *folder.glob("*.config")):
        path.unlink()


def trajectory(case: Case, meta: dict, run: Run, test: dict, ref: dict) -> list[str]:
    """Train for STEPS steps and enter what happened in `ref`. Returns the frozen parameters that moved."""
    every, trained = list(meta["parameters"]), meta["requires_grad"]
    before = run.parameters(every)
    loss, *others = run.evaluate(test)
    ref |= {"eval_before": loss} | named(
        "eval_before_out", dict(zip(case.extra_outputs, others, strict=True))
    )
    losses = []
    for step in range(STEPS):
        loss, *others = run.train()
        losses.append(loss)
        if step == 0:
            ref |= named("grad_step1", run.gradients(trained))
        if step in (0, STEPS - 1):
            when = "train_out_last" if step else "train_out_first"
            ref |= named(when, dict(zip(case.extra_outputs, others, strict=True)))
        run.update()
        if step == 0:
            after = run.parameters(every)
            moving = [n for n in meta["frozen"] if not np.array_equal(before[n], after[n])]
            ref |= named("param_step1", {n: after[n] for n in [*trained, *moving]})
            ref |= named("opt_step1", run.moments())
    ref["loss"] = np.array(losses, np.float32)
    ref |= named("param_final", run.parameters([*trained, *moving]))
    ref["eval_after"] = run.evaluate(test)[0]
    return moving


def named(prefix: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}/{n}": v for n, v in values.items()}


def user_outputs(module: Module) -> list[str]:
    return [n for n in module.output_names() if not n.endswith("_grad.accumulation.out")]


def more(run: Run, params: list[str] | None = None, grads: list[str] | None = None) -> tuple:
    """Further steps: losses, and gradients and parameters of the first of them."""
    losses, gradients, parameters = [], {}, {}
    for step in range(MORE):
        losses.append(run.train()[0])
        if step == 0:
            gradients = run.gradients(grads or [])
        run.update()
        if step == 0:
            parameters = run.parameters(params or [])
    return np.array(losses, np.float32), gradients, parameters


def noise(case: Case, folder: Path, data: dict, ref: dict, trained: list[str], moving: list[str]) -> dict:
    """How far legitimate runs differ: the largest deviations over runs whose trained parameters start one
    rounding unit up or down."""
    grad, final = dict.fromkeys(trained, 0.0), dict.fromkeys([*trained, *moving], 0.0)
    loss, relative = np.zeros(STEPS), 0.0
    for seed in range(ULP_RUNS):
        rng = np.random.default_rng(seed)
        run = Run(folder, "checkpoint", case.lr, data)
        for n, value in run.parameters(trained).items():
            towards = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
            run.state.parameters[n].data = np.nextafter(value, towards)
        for step in range(STEPS):
            loss[step] = max(loss[step], abs(float(run.train()[0]) - float(ref["loss"][step])))
            if step == 0:
                for n, g in run.gradients(trained).items():
                    worst = float(np.max(np.abs(g - ref[f"grad_step1/{n}"])))
                    grad[n] = max(grad[n], worst)
                    scale = float(np.max(np.abs(ref[f"grad_step1/{n}"])))
                    relative = max(relative, worst / max(scale, 1e-30))
            run.update()
        for n, value in run.parameters(list(final)).items():
            final[n] = max(final[n], float(np.max(np.abs(value - ref[f"param_final/{n}"]))))
    return {
        "ulp_runs": ULP_RUNS,
        "loss_per_step": loss.tolist(),
        "grad1_rel_max": relative,
        "grad1_abs": grad,
        "param_final_abs": final,
        "param_final_max": max(final.values()),
    }


def main(arguments: list[str]) -> None:
    """Golden folder, artifacts folder, then the names to make (none: all). Each set has its own process,
    because the generator numbers the names it invents through the life of a process."""
    golden, shipped, *only = arguments
    known = {case.name: case for case in (*CASES, ARTIFACTS)}
    if set(only) - set(known):
        strange = ", ".join(sorted(set(only) - set(known)))
        raise SystemExit(f"no set is called {strange}; there are {', '.join(known)}")
    if len(only) == 1:
        case = known[only[0]]
        if case is ARTIFACTS:
            generate(case, Path(shipped))
        else:
            record(case, Path(golden) / case.name)
        return
    for name in only or known:
        # ONNX Runtime's graph tools write hundreds of lines, which matter only if something fails.
        command = [sys.executable, __file__, golden, shipped, name]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise SystemExit(f"{name}: failed\n{made.stderr[-4000:]}")
        print(f"{name}: made", flush=True)
    models = [p for case in CASES for p in (Path(golden) / case.name).glob("*_model.onnx")]
    missing = REQUIRED - {n.op_type for p in models for n in onnx.load(p).graph.node}
    if missing and not only:
        raise SystemExit(f"no golden set uses {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main(sys.argv[1:])
