"""The web demo of ONNX Runtime's training examples, with its import changed and nothing else: it is bundled by its own
configuration and trained in Chromium by a click. Its digits are those that scikit-learn ships, and its artifacts are
made here. Needs npm, its registry, chromium, scikit-learn, and a copy of the repository onnxruntime-training-examples:

    ORT_EXAMPLES=onnxruntime-training-examples pytest tests/slow/test_ort_web_demo.py
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from programs import page, run, serve, tool
from quiet_progress import Quiet

from minbuild.pipeline import Request, reduce
from minbuild.training import artifacts

datasets = pytest.importorskip("sklearn.datasets")

DEMO = "on_device_training/web/web-bundler"
LOSS = "onnx::loss::8"  # the demo's name of the loss
HIDDEN, PIXELS, CLASSES, SIDE = 500, 784, 10, 28
# A click on the button, once the page has one.
CLICK = """
<script>
addEventListener("error", (event) => { document.title = "error: " + event.message; });
const timer = setInterval(() => {
  const button = [...document.querySelectorAll("button")].find((each) => each.textContent.trim() === "Train");
  if (button && document.querySelector("canvas")) { clearInterval(timer); button.click(); }
}, 100);
</script>
"""


def write_artifacts(folder: Path) -> None:
    """The network of the demo's notebook, with outputs of the names that the demo reads."""
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> TensorProto:
        bound = shape[-1] ** -0.5 if len(shape) > 1 else 0.01
        return numpy_helper.from_array(random.uniform(-bound, bound, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["output"], transB=1),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", size])
        for name, size in (("input", PIXELS), ("output", CLASSES))
    ]
    trained = [
        weights("fc1.weight", HIDDEN, PIXELS),
        weights("fc1.bias", HIDDEN),
        weights("fc2.weight", CLASSES, HIDDEN),
        weights("fc2.bias", CLASSES),
    ]
    graph = helper.make_graph(nodes, "main_graph", ports[:1], ports[1:], trained)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    folder.mkdir()
    artifacts.generate_artifacts(
        model,
        optimizer=artifacts.OptimType.AdamW,
        loss=artifacts.LossType.CrossEntropyLoss,
        requires_grad=[tensor.name for tensor in trained],
        frozen_params=[],
        additional_output_names=["output"],
        artifact_directory=folder,
    )
    for name in ("training_model.onnx", "eval_model.onnx"):
        made = onnx.load(folder / name)
        old = made.graph.output[0].name
        made.graph.output[0].name = LOSS
        for node in made.graph.node:
            for names in (node.input, node.output):
                names[:] = [LOSS if each == old else each for each in names]
        onnx.save(made, folder / name)


def write_digits(folder: Path) -> None:
    """Digits of 28 by 28 pixels in files of the format of MNIST."""
    digits = datasets.load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    images = np.kron(digits.images[order] * (255 / 16), np.ones((3, 3)))
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    labels = digits.target[order].astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(1400)), ("t10k", slice(1400, None))):
        count = len(labels[part])
        head = struct.pack(">4i", 2051, count, SIDE, SIDE)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + images[part].tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, count) + labels[part].tobytes()
        )


def test_the_demo_trains_with_its_import_changed(tmp_path: Path) -> None:
    copy = Path(os.environ.get("ORT_EXAMPLES", "")) / DEMO
    if not (copy / "package.json").is_file():
        pytest.skip("ORT_EXAMPLES is not a folder of onnxruntime-training-examples")
    write_artifacts(tmp_path / "artifacts")
    reduce(Request((tmp_path / "artifacts",), tmp_path / "dist", analysis=False, bindings=("js",)), Quiet())
    demo = Path(shutil.copytree(copy, tmp_path / "demo"))
    for path in (demo / "src").glob("*.ts*"):
        text = path.read_text("utf-8")
        path.write_text(text.replace("onnxruntime-web/training", "minbuild-trainer/training"), "utf-8")
    # The last onnxruntime-web with training, whose modules the demo's configuration copies, and a compiler of its time.
    install = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--install-links")
    packages = ("onnxruntime-web@1.19.2", "typescript@5", tmp_path / "dist/bindings/js")
    run(tool("npm"), *install, *packages, cwd=demo)
    # The demo's own type errors, which onnxruntime-web's types have too, do not keep a bundle from being written.
    bundled = shutil.which("npx", path=os.environ["PATH"]) or pytest.skip("npx is not installed")
    run("sh", "-c", f"{bundled} webpack --mode development > webpack.log || true", cwd=demo)
    log = (demo / "webpack.log").read_text()
    assert set(re.findall(r"TS\d+", log)) <= {"TS2345"} and (demo / "public/bundle.js").is_file(), log
    write_digits(demo / "public/data")
    for name in ("checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        shutil.copy(tmp_path / "artifacts" / name, demo / "public")
    index = demo / "public/index.html"
    index.write_text(index.read_text().replace("</body>", CLICK + "</body>"))
    with serve(demo / "public") as server:
        shown = page(f"http://127.0.0.1:{server.server_port}/index.html", 600)
    found = re.search(r"Training completed. Final test set accuracy: ([\d.]+)%", shown)
    assert found and float(found[1]) > 90, shown[-4000:]
    modules = {path.name: path.stat().st_size for path in (demo / "public").glob("*.wasm")}
    ours = (tmp_path / "dist/bindings/js/minbuild.wasm").stat().st_size
    print(
        f"{found[1]} %; the module has {ours} bytes, ONNX Runtime's {modules['ort-training-wasm-simd-threaded.wasm']}"
    )
