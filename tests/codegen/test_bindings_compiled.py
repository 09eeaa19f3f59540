"""Bindings with a package that has no plan file and starts from a compact checkpoint: every sample trains as it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import lenet
import numpy as np
import pytest
from places import TESTS
from programs import CC, CXX, page, run, serve, tool

from minbuild.toolchain import host_target

STEPS = 40
REFUSED = """
import { Tensor, TrainingSession } from "./index.js";
import assert from "node:assert/strict";
const checkpointState = "../../model/checkpoint", exportTemplate = "../../model/inference.template";
const session = await TrainingSession.create({ checkpointState, exportTemplate });
const wrong = { input: new Tensor("float64", new Float64Array(784), [1, 1, 28, 28]), labels: new Tensor("int64", [0]) };
assert.throws(() => session.runTrainStep(wrong), /input 'input' is float64, the model takes float32/);
const other = { trainModel: checkpointState, checkpointState };
await assert.rejects(TrainingSession.create(other), (error) => error.code === 2 && /pass none/.test(error.message));
const saved = session.saveCheckpoint();
const again = await TrainingSession.create({ checkpointState: saved });
assert.deepEqual(again.getParameter("fc3.weight").data, session.getParameter("fc3.weight").data);
again.loadCheckpoint(saved);
assert.ok(session.exportModel().length > 4 * 7850);
"""

REFUSED_SWIFT = """
import Foundation
import Minbuild
let model = URL(fileURLWithPath: CommandLine.arguments[1]).appendingPathComponent("model")
let session = try TrainingSession(plan: nil, checkpoint: model.appendingPathComponent("checkpoint"))
let labels = Tensor([Int64](repeating: 0, count: 1))
do {
    _ = try session.trainStep([Tensor([Double](repeating: 0, count: 784), dims: [1, 1, 28, 28]), labels])
} catch let error as TrainerError {
    print(error)
}
print("\\(Tensor([Int16(3), -4]).elements(as: Int16.self)!.count) elements again")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layer")
    package = lenet.write_package(
        lenet.write_artifacts(folder, one_layer=True), folder / "dist", compiled=True
    )
    assert not (package / "model/trainer.plan").exists()
    assert (package / "model/checkpoint").read_bytes()[4:8] == b"MBCP"
    return package


def archive(dist: Path) -> Path:
    return dist / "lib" / str(host_target()) / "libminbuild.a"


def losses(text: str) -> np.ndarray:
    found = np.array([float(word) for word in text.split()])
    assert len(found) == STEPS
    return found


@pytest.fixture(scope="module")
def expected(dist: Path) -> np.ndarray:
    """The losses that the C++ example sees."""
    folder = dist / "bindings/cpp"
    flags = ("-fno-exceptions", f"-I{dist / 'include'}", "-I.")
    run(*CXX, *flags, "train.cc", archive(dist), "-o", "train", cwd=folder)
    return losses(run("./train", "../..", STEPS, cwd=folder))


def test_cpp_learns(dist: Path, expected: np.ndarray) -> None:
    assert expected[-10:].mean() < 0.8 * expected[:10].mean()
    assert (dist / "bindings/cpp/trained.checkpoint").read_bytes()[4:8] == b"ODTC"


def test_node(dist: Path, expected: np.ndarray) -> None:
    folder = dist / "bindings/js"
    found = losses(run(tool("node"), "train.mjs", "../../..", STEPS, cwd=folder / "example"))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    (folder / "refused.mjs").write_text(REFUSED)
    run("node", "refused.mjs", cwd=folder)


def test_programs_for_onnxruntime_web(dist: Path) -> None:
    shutil.copy(TESTS / "codegen/bindings/ort_web.mjs", dist / "bindings/js")
    assert run(tool("node"), "ort_web.mjs", cwd=dist / "bindings/js") == "passed\n"


def test_browser(dist: Path, expected: np.ndarray) -> None:
    server = serve(dist)
    try:
        text = page(f"http://127.0.0.1:{server.server_port}/bindings/js/example/index.html?steps={STEPS}")
    finally:
        server.shutdown()
    found = re.search(r'data-losses="([^"]*)"', text)
    assert found, text[-2000:]
    np.testing.assert_allclose(losses(found[1]), expected, rtol=1e-3)


def test_java(dist: Path, expected: np.ndarray) -> None:
    folder, home = dist / "bindings/java", Path(tool("javac")).resolve().parents[1]
    include = [f"-I{p}" for p in (dist / "include", "src/main/cpp", home / "include", home / "include/linux")]
    native = ("-std=c99", "-shared", "-fPIC", "-fvisibility=hidden", *include, "src/main/cpp/minbuild_jni.c")
    run(*CC, *native, archive(dist), "-o", "libminbuild_jni.so", cwd=folder)
    sources = [*sorted((folder / "src/main/java").rglob("*.java")), "example/Train.java"]
    run("javac", "-d", "classes", *sources, cwd=folder)
    said = run("java", "-Djava.library.path=.", "-cp", "classes", "Train", "../..", STEPS, cwd=folder)
    np.testing.assert_allclose(losses(said), expected, rtol=1e-3)


def test_csharp(dist: Path, expected: np.ndarray) -> None:
    folder, mono = dist / "bindings/csharp", tool("mono")
    sources = sorted(folder.glob("*.cs"))
    run(tool("mcs"), "-unsafe", "-out:program.exe", *sources, "example/Train.cs", cwd=folder)
    shutil.copy(archive(dist).with_name("libminbuild.so"), folder)
    np.testing.assert_allclose(
        losses(run(mono, "program.exe", "../..", STEPS, cwd=folder)), expected, rtol=1e-3
    )


def test_swift(dist: Path, expected: np.ndarray) -> None:
    said = run(tool("swift"), "run", "TrainExample", "../..", STEPS, cwd=dist / "bindings/swift")
    np.testing.assert_allclose(losses(said), expected, rtol=1e-3)


def test_swift_says_what_a_person_did(dist: Path, tmp_path: Path) -> None:
    swift = tool("swift")
    copy = Path(shutil.copytree(dist, tmp_path / "dist"))
    (copy / "bindings/swift/Sources/TrainExample/main.swift").write_text(REFUSED_SWIFT)
    said = run(swift, "run", "TrainExample", "../..", cwd=copy / "bindings/swift").splitlines()
    assert said == [
        "input 'input' is float64, the model takes float32.",
        "2 elements again",
    ]
