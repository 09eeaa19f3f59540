"""The example of transfer learning, as a C program and as a page in a browser."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import lenet
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from places import EXAMPLES
from programs import CC, page, run, serve

from minbuild.toolchain import host_target

EXAMPLE = EXAMPLES / "transfer-learning"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """The folder of the example's README, after its first three commands."""
    folder = tmp_path_factory.mktemp("work")
    script("make_model").make(folder)
    script("make_images").make(folder / "images")
    lenet.write_package(folder / "artifacts", folder / "dist")
    return folder


@pytest.fixture(scope="module")
def said(work: Path) -> str:
    """What the C program prints."""
    library = work / "dist/lib" / str(host_target()) / "libminbuild.a"
    include = f"-I{work / 'dist/include'}"
    run(*CC, "-std=c99", include, EXAMPLE / "transfer.c", library, "-o", "transfer", cwd=work)
    return run("./transfer", "dist", "images", cwd=work)


def right_ones(said: str, when: str) -> int:
    found = re.search(rf"^{when}: (\d+) of 40 right$", said, re.MULTILINE)
    assert found, said
    return int(found[1])


def held_images(work: Path) -> tuple[np.ndarray, np.ndarray]:
    data = (work / "images/held.bin").read_bytes()
    count, _, side = np.frombuffer(data, "<i4", 3)
    rows = np.frombuffer(data[12:], np.dtype([("label", "<i4"), ("pixels", "<f4", (3, side, side))]))
    assert len(rows) == count
    return rows["pixels"], rows["label"]


def test_program_learns(said: str) -> None:
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert right_ones(said, "before") <= 20 and right_ones(said, "after") >= 34


def test_exported_model_answers_as_the_device(work: Path, said: str) -> None:
    pixels, labels = held_images(work)
    exported = onnx.load(str(work / "classifier.onnx"))
    onnx.checker.check_model(exported)
    (scores,) = ReferenceEvaluator(exported).run(None, {exported.graph.input[0].name: pixels})
    assert np.count_nonzero(scores.argmax(1) == labels) == right_ones(said, "after")
    before = {
        w.name: numpy_helper.to_array(w) for w in onnx.load(str(work / "forward.onnx")).graph.initializer
    }
    after = {w.name: numpy_helper.to_array(w) for w in exported.graph.initializer}
    moved = {n for n in before if n in after and not np.array_equal(before[n], after[n])}
    assert moved == {"classifier.weight", "classifier.bias"}


def test_page_does_the_same(work: Path, said: str) -> None:
    shutil.copy(EXAMPLE / "index.html", work)
    server = serve(work)
    try:
        text = page(f"http://127.0.0.1:{server.server_port}/index.html")
    finally:
        server.shutdown()
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', text))
    assert "losses" in found, text[-2000:]
    assert abs(int(found["after"]) - right_ones(said, "after")) <= 1
    losses = [float(word) for word in found["losses"].split()]
    np.testing.assert_allclose(losses[9::10], [float(x) for x in re.findall(r"loss (\S+)", said)], rtol=0.02)
