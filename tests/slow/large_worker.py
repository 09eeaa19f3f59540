"""The parts of bench_large.py that need environments of their own.

    python large_worker.py export FOLDER NAME BATCH,BATCH   with torch and onnx: model.onnx, batches, what trains
    python large_worker.py artifacts FOLDER                 with onnxruntime-training-cpu 1.19.2
    python large_worker.py torch|ort|ours FOLDER NAME BATCH THREADS

The last three train. They print the first loss, then for every line of standard input, a number, the seconds (of the
wall clock, and of processors) of so many steps, and at its end the memory that training has added at most, in KiB.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]
import bench_ort  # noqa: E402

RATE = 1e-4


def export(folder: Path, name: str, batches: str) -> None:
    import torch
    from large_nets import made, net_of

    net, model = net_of(name), made(name)
    random = np.random.default_rng(3)
    for size in map(int, batches.split(",")):
        shape = (size, *net.shape)
        x = random.integers(0, net.words, shape) if net.words else random.standard_normal(shape)
        x = x if net.words else x.astype(np.float32)
        given = {"x": torch.from_numpy(x)}
        if net.gives_loss:
            labels = random.integers(0, net.classes, (size, *net.label_shape))
            given["labels"] = torch.from_numpy(labels)
        else:
            with torch.no_grad():
                scores = model(given["x"]).shape  # a label for every place that has a score of each class
            labels = random.integers(0, net.classes, (scores[0], *scores[2:]))
        np.savez(folder / f"batch_{size}.npz", x=x, labels=labels)
    torch.onnx.export(
        model, tuple(given.values()), str(folder / "model.onnx"), dynamo=False, opset_version=net.opset,
        input_names=list(given), output_names=["y"], dynamic_axes={n: {0: "batch"} for n in given},
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
    )  # fmt: skip
    (folder / "loss.txt").write_text("none" if net.gives_loss else "cross-entropy")
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    (folder / "trained.json").write_text(json.dumps(trained))


def artifacts(folder: Path) -> None:
    import onnx

    bench_ort._import_ort()
    from onnxruntime.training import artifacts as generator
    from onnxruntime.training import onnxblock

    class Loss(onnxblock.loss.CrossEntropyLoss):
        """Cross-entropy whose labels have the dimensions of the scores without the second, the classes; ONNX
        Runtime's own drops the last."""

        def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
            loss = super().build(scores_input_name, labels_name)
            scores = next(o for o in model.graph.output if o.name == scores_input_name)
            dims = scores.type.tensor_type.shape.dim
            labels = next(i for i in self.base.graph.input if i.name == labels_name)
            del labels.type.tensor_type.shape.dim[:]
            labels.type.tensor_type.shape.dim.extend([dims[0], *dims[2:]])
            return loss

    model = onnx.load(folder / "model.onnx")
    known = {i.name for i in model.graph.initializer}
    wanted = set(json.loads((folder / "trained.json").read_text()))
    # Where the exporter arranges weights anew, all of its own trains.
    layers = ("onnx::LSTM", "onnx::GRU", "onnx::RNN")
    trained = sorted(n for n in known if n in wanted or n.startswith(layers))
    gives_loss = (folder / "loss.txt").read_text() == "none"
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    frozen = [n for n in known if n not in trained and "." in n and not n.endswith(buffers)]
    generator.generate_artifacts(
        model, requires_grad=trained, frozen_params=sorted(frozen),
        loss=None if gives_loss else Loss(),
        optimizer=generator.OptimType.AdamW, artifact_directory=str(folder),
    )  # fmt: skip


def train(who: str, folder: Path, name: str, batch: str, threads: str) -> None:
    """Steps as they are asked for."""
    with np.load(folder / f"batch_{batch}.npz") as arrays:
        given = {name: arrays[name] for name in ("x", "labels")}
    makers = {"torch": torch_step, "ort": ort_step, "ours": our_step}
    if who == "torch":
        import torch  # noqa: F401
    elif who == "ort":
        bench_ort._import_ort()
    else:
        from minbuild.training import library  # noqa: F401
    before = bench_ort._start()
    step = makers[who](folder, name, given, int(threads))
    print(json.dumps(step()), flush=True)
    for line in sys.stdin:
        since, used = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(json.dumps((time.perf_counter() - since, time.process_time() - used)), flush=True)
    print(json.dumps(bench_ort._resident("VmHWM") - before), flush=True)


def torch_step(folder: Path, name: str, given: dict[str, np.ndarray], threads: int) -> Callable[[], float]:
    import torch
    from large_nets import made, net_of
    from torch.nn import functional

    torch.set_num_threads(threads)
    model, gives_loss = made(name), net_of(name).gives_loss
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, fused=True)
    x, labels = (torch.from_numpy(given[n]) for n in ("x", "labels"))

    def step() -> float:
        loss = model(x, labels) if gives_loss else functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def ort_step(folder: Path, name: str, given: dict[str, np.ndarray], threads: int) -> Callable[[], float]:
    import onnxruntime
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(RATE)
    batch = [given[n] for n in module.input_names()]

    def step() -> float:
        answer = module(*batch)
        optimizer.step()
        module.lazy_reset_grad()
        return float(np.ravel(answer)[0])

    return step


def forget(path: Path) -> None:
    """Drops a file from the system's cache, as if it had not been used since it was installed. Where it was written in
    small pieces the cache has it in small pages, which take longer to find than those of a file that is read anew."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def our_step(folder: Path, name: str, given: dict[str, np.ndarray], threads: int) -> Callable[[], float]:
    """The trainer that bench_large.py has built."""
    import ctypes

    from minbuild.training.c_api import COptions, CParameter, CSession, to_tensor
    from minbuild.training.library import TRAIN, Library

    about = json.loads((folder / "about.json").read_text())
    forget(folder / "checkpoint")
    library, handle = Library(folder / "trainer.so"), ctypes.POINTER(CSession)()
    sizes = (ctypes.c_int32 * about["symbols"])(*[len(given["x"])] * about["symbols"])
    options = COptions(None, 0, sizes, about["symbols"])
    options.threads = threads
    files = (str(folder / "trainer.plan").encode(), str(folder / "checkpoint").encode())
    if library.create_from_files(*files, ctypes.byref(options), ctypes.byref(handle)):
        raise RuntimeError(options.error.decode())
    session, count = handle.contents, len(about["inputs"])
    session.progress.contents.learning_rate = RATE
    batch = [given[n] for n in about["inputs"]]
    tensors = (type(to_tensor(batch[0])) * count)(*map(to_tensor, batch))
    loss = CParameter()

    def step() -> float:
        if library.run(handle, TRAIN, tensors, count) or library.run(handle, 2, None, 0):
            raise RuntimeError(session.error.decode())
        session.replaces_gradients = 1
        library.get(handle, 2 * TRAIN + 1, 0, ctypes.byref(loss))
        return ctypes.c_float.from_address(loss.value.data).value

    return step


if __name__ == "__main__":
    what, folder, *others = sys.argv[1:]
    if what == "export":
        export(Path(folder), *others)
    elif what == "artifacts":
        artifacts(Path(folder))
    else:
        train(what, Path(folder), *others)
