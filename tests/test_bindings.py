"""Bindings: each trains LeNet on the same images and must see the same losses; without its compiler one is skipped."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import lenet
import numpy as np
import onnx
import pytest
from programs import CC, CXX, page, run, serve, tool

from minbuild.bindings import binding_files, read_header, wanted_languages
from minbuild.errors import BadInput
from minbuild.toolchain import host_target

STEPS = 60


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lenet")
    return lenet.write_package(lenet.write_artifacts(folder), folder / "dist")


def archive(dist: Path) -> Path:
    return dist / "lib" / str(host_target()) / "libminbuild.a"


@pytest.fixture(scope="module")
def expected(dist: Path) -> np.ndarray:
    """The losses that the C++ example sees."""
    folder = dist / "bindings/cpp"
    run(
        *CXX,
        "-fno-exceptions",
        f"-I{dist / 'include'}",
        "-I.",
        "train.cc",
        archive(dist),
        "-o",
        "train",
        cwd=folder,
    )
    return losses(run("./train", "../..", STEPS, cwd=folder))


def losses(text: str) -> np.ndarray:
    found = np.array([float(word) for word in text.split()])
    assert len(found) == STEPS
    return found


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """The first steps agree closely; later ones as far as rounding in another order lets them."""
    np.testing.assert_allclose(found[:10], expected[:10], rtol=1e-3)
    np.testing.assert_allclose(found[-10:].mean(), expected[-10:].mean(), rtol=0.5, atol=0.05)


def test_cpp_learns(dist: Path, expected: np.ndarray) -> None:
    assert expected[-10:].mean() < 0.5 * expected[:10].mean()
    assert (dist / "bindings/cpp/trained.checkpoint").stat().st_size > (
        dist / "model/checkpoint"
    ).stat().st_size


def test_node(dist: Path, expected: np.ndarray) -> None:
    folder = dist / "bindings/js/example"
    check(losses(run(tool("node"), "train.mjs", "../../..", STEPS, cwd=folder)), expected)


EVERYTHING = """
import { TrainingSession, Tensor, TrainerError } from "./index.js";
import { makeBatch } from "./example/images.js";
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";

const model = "../../model/";
const trainModel = model + "trainer.plan";
const session = await TrainingSession.create(
  { trainModel, checkpointState: model + "checkpoint", mold: model + "inference.mold" });
const [first] = session.parameterNames, batch = makeBatch(session, 8), [loss] = session.trainingOutputNames;
assert.deepEqual(session.describeInputs()[0], { name: "input", type: "float32", dims: [-1, 1, 28, 28] });
assert.equal(session.runEvalStep(batch)[session.evalOutputNames[0]].data[0], session.runTrainStep(batch)[loss].data[0]);
session.runOptimizerStep();
session.lazyResetGrad();
session.setProperty("epoch", 3n);
session.setProperty("best", 0.5);
session.setProperty("who", "grün");
assert.deepEqual(["epoch", "best", "who", "none"].map((n) => session.getProperty(n)), [3n, 0.5, "grün", undefined]);
session.setProperty("who", undefined);
assert.equal(session.getProperty("who"), undefined);
const all = session.getContiguousParameters();
assert.equal(all.size, session.getParametersSize());
all.data[5] = 9;
session.loadParametersBuffer(all.data);
assert.equal(session.getParameter(first).data[5], 9);
session.seed = 7;
assert.equal(session.seed, 7n);
session.learningRate = 0.25;
const checkpoint = session.saveCheckpoint();
const other = await TrainingSession.create({ trainModel, checkpointState: checkpoint });
assert.deepEqual([other.stepCount, other.getProperty("epoch"), other.learningRate], [1, 3n, 0.25]);
const again = () => [session, other].map((s) => s.runTrainStep(batch)[loss].data[0]);
assert.equal(...again());
other.updateParameter(first, new Tensor("float32", all.data.slice(0, 150).fill(0), [6, 1, 5, 5]));
other.loadCheckpoint(checkpoint);
assert.equal(other.getParameter(first).data[5], 9);
const bad = { ...batch, input: new Tensor("float32", [1, 2], [2]) };
assert.throws(() => session.runTrainStep(bad), (error) => error instanceof TrainerError && error.code === 6);
assert.throws(() => session.runTrainStep({}), /input, labels/);
assert.throws(() => session.getParameter("none"), /conv1.weight/);
assert.throws(() => new Tensor("float32", [1, 2], [3]), RangeError);
await assert.rejects(TrainingSession.create({ trainModel: checkpoint }), (error) => error.code === 2);
writeFileSync("out.onnx", session.exportModel());
session.release();
"""


def test_everything_in_javascript(dist: Path) -> None:
    folder = dist / "bindings/js"
    (folder / "everything.mjs").write_text(EVERYTHING)
    run(tool("node"), "everything.mjs", cwd=folder)
    onnx.checker.check_model(onnx.load(str(folder / "out.onnx")))


def test_browser(dist: Path, expected: np.ndarray) -> None:
    server = serve(dist)
    try:
        text = page(f"http://127.0.0.1:{server.server_port}/bindings/js/example/index.html?steps={STEPS}")
    finally:
        server.shutdown()
    found = re.search(r'data-losses="([^"]*)"', text)
    assert found, text[-2000:]
    check(losses(found[1]), expected)


# ---------------------------------------------------------------------------- Java and Kotlin


@pytest.fixture(scope="module")
def java(dist: Path) -> Path:
    """The folder of the Java binding, with the native library and the classes built."""
    folder, home = dist / "bindings/java", Path(tool("javac")).resolve().parents[1]
    include = [f"-I{p}" for p in (dist / "include", "src/main/cpp", home / "include", home / "include/linux")]
    native = ("-std=c99", "-shared", "-fPIC", "-fvisibility=hidden", *include, "src/main/cpp/minbuild_jni.c")
    run(*CC, *native, archive(dist), "-o", "libminbuild_jni.so", cwd=folder)
    sources = sorted((folder / "src/main/java").rglob("*.java"))
    run("javac", "-Xlint:all,-options", "-Werror", "--release", "8", "-d", "classes", *sources, cwd=folder)
    return folder


def execute_java(folder: Path, *arguments: object) -> str:
    return run("java", "-Djava.library.path=.", "-cp", "classes", *arguments, cwd=folder)


def test_java(java: Path, expected: np.ndarray) -> None:
    run("javac", "-cp", "classes", "-d", "classes", "example/Train.java", cwd=java)
    check(losses(execute_java(java, "Train", "../..", STEPS)), expected)


EVERYTHING_IN_JAVA = """
import ai.onnxruntime.*;
import java.nio.*;
import java.nio.file.*;
import java.util.*;

public class Everything {
  static void must(boolean holds) { if (!holds) throw new AssertionError(); }

  public static void main(String[] arguments) throws Exception {
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    String model = "../../model/";
    OrtTrainingSession.setSeed(3);
    OrtTrainingSession session = env.createTrainingSession(model + "checkpoint", model + "trainer.plan", "", "");
    Map<String, OnnxTensor> batch = new HashMap<>();
    batch.put("input", OnnxTensor.createTensor(env, new float[2][1][28][28]));
    batch.put("labels", OnnxTensor.createTensor(env, new long[] {1, 2}));
    float loss = (float) session.evalStep(batch).get(0).getValue();
    must(loss == (float) session.trainStep(batch, session.getTrainOutputNames()).get(0).getValue());
    session.optimizerStep();
    session.lazyResetGrad();
    session.addProperty("epoch", 3);
    session.addProperty("best", 0.5f);
    session.addProperty("who", "gr\u00fcn");
    must(session.getIntProperty("epoch") == 3 && session.getFloatProperty("best") == 0.5f);
    must(session.getStringProperty("who").equals("gr\u00fcn"));
    FloatBuffer all = session.getContiguousParameters(true);
    must(all.remaining() == session.getParametersSize(true));
    all.put(5, 9);
    session.copyBufferToParameters(all, true);
    OnnxTensor weight = session.getParameter("conv1.weight");
    must(weight.getFloatBuffer().get(5) == 9 && ((float[][][][]) weight.getValue())[0][0][1][0] == 9);
    session.setLearningRate(0.25f);
    session.saveCheckpoint(Paths.get("all.checkpoint"), true);
    session.updateParameter("conv1.weight", OnnxTensor.createTensor(env, new float[6][1][5][5]));
    session.loadCheckpoint(Files.readAllBytes(Paths.get("all.checkpoint")));
    must(session.getParameter("conv1.weight").getFloatBuffer().get(5) == 9);
    OrtTrainingSession other = env.createTrainingSession("all.checkpoint", model + "trainer.plan", "", "");
    must(other.getIntProperty("epoch") == 3 && other.getLearningRate() == 0.25f);
    session.exportModelForInference(Paths.get(model + "inference.mold"), Paths.get("out.onnx"));
    refuses(6, () -> session.trainStep(wrong(env, batch)));
    refuses(1, () -> session.trainStep(new HashMap<>()));
    refuses(1, () -> session.getIntProperty("who"));
    refuses(8, () -> env.createTrainingSession("none", model + "trainer.plan", "", ""));
    session.close();
    other.close();
    try {
      session.optimizerStep();
      must(false);
    } catch (IllegalStateException closed) {
      System.out.println("all is well");
    }
  }

  static Map<String, OnnxTensor> wrong(OrtEnvironment env, Map<String, OnnxTensor> batch) throws OrtException {
    Map<String, OnnxTensor> other = new HashMap<>(batch);
    other.put("input", OnnxTensor.createTensor(env, new float[] {1, 2}));
    return other;
  }

  interface Call { void make() throws Exception; }

  static void refuses(int code, Call call) throws Exception {
    try {
      call.make();
    } catch (OrtException refused) {
      if (refused.getCode() == code && !refused.getMessage().isEmpty()) return;
      throw refused;
    }
    must(false);
  }
}
"""


def test_everything_in_java(java: Path) -> None:
    (java / "Everything.java").write_text(EVERYTHING_IN_JAVA)
    run("javac", "-cp", "classes", "-d", "classes", "Everything.java", cwd=java)
    assert execute_java(java, "Everything") == "all is well\n"
    onnx.checker.check_model(onnx.load(str(java / "out.onnx")))


KOTLIN = """
import ai.onnxruntime.OrtTrainingSession
import ai.onnxruntime.tensorOf
import ai.onnxruntime.trainOn

fun step(session: OrtTrainingSession, pixels: FloatArray, classes: LongArray): Float =
    session.trainOn("input" to tensorOf(pixels, 8, 1, 28, 28), "labels" to tensorOf(classes, 8))
"""


def test_kotlin_compiles(java: Path) -> None:
    (java / "Step.kt").write_text(KOTLIN)
    files = ("src/main/kotlin/ai/onnxruntime/Training.kt", "Step.kt")
    run(tool("kotlinc"), "-cp", "classes", *files, "-d", "kotlin", cwd=java)
    assert (java / "kotlin/StepKt.class").is_file()


# ---------------------------------------------------------------------------- C#

EVERYTHING_IN_CSHARP = """
using System;
using System.IO;
using Minbuild;

static class Everything
{
    static void Must(bool holds) { if (!holds) throw new Exception("does not hold"); }

    static void Main()
    {
        string plan = "../../model/trainer.plan";
        var batch = new[] { new Tensor(new float[2 * 784], 2, 1, 28, 28), new Tensor(new long[] { 1, 2 }, 2) };
        var session = new TrainingSession("../../model/checkpoint", plan, 4);
        Must(session.EvalStep(batch)[0].Floats[0] == session.TrainStep(batch)[0].Floats[0]);
        session.OptimizerStep();
        session.LazyResetGrad();
        session.SetProperty("epoch", 3L);
        session.SetProperty("best", 0.5f);
        session.SetProperty("who", "gr\u00fcn");
        Must((long)session.GetProperty("epoch") == 3 && (float)session.GetProperty("best") == 0.5f);
        Must((string)session.GetProperty("who") == "gr\u00fcn" && session.GetProperty("none") == null);
        float[] all = session.ToBuffer(true);
        all[5] = 9;
        session.FromBuffer(all, true);
        Must(session.GetParameter("conv1.weight").Floats[5] == 9);
        session.LearningRate = 0.25f;
        for (int i = 0; i < 2; ++i) session.SaveCheckpoint("all.checkpoint", true);
        session.UpdateParameter("conv1.weight", new Tensor(new float[150], 6, 1, 5, 5));
        session.LoadCheckpoint(File.ReadAllBytes("all.checkpoint"));
        Must(session.GetParameter("conv1.weight").Floats[5] == 9);
        var other = new TrainingSession("all.checkpoint", plan);
        Must(other.StepCount == 1 && other.LearningRate == 0.25f);
        session.ExportModelForInferencing("../../model/inference.mold", "out.onnx");
        Refuses(6, () => session.TrainStep(batch[1], batch[0]));
        Refuses(1, () => session.GetParameter("none"));
        Refuses(5, () => session.TrainStep(new Tensor(new float[5 * 784], 5, 1, 28, 28), new Tensor(new long[5], 5)));
        Refuses(2, () => new TrainingSession(new byte[64], new byte[64]));
        session.Dispose();
        other.Dispose();
        Console.WriteLine("all is well");
    }

    static void Refuses(int code, Action call)
    {
        try { call(); }
        catch (TrainerException refused) { if (refused.Code == code && refused.Message != "") return; throw; }
        Must(false);
    }
}
"""


def csharp(dist: Path, program: str, *arguments: object) -> str:
    """Compiles the binding with a program, and runs it."""
    folder, mono = dist / "bindings/csharp", tool("mono")
    sources = sorted(folder.glob("*.cs"))
    run(tool("mcs"), "-unsafe", "-warn:4", "-warnaserror", "-out:program.exe", *sources, program, cwd=folder)
    shutil.copy(archive(dist).with_name("libminbuild.so"), folder)
    return run(mono, "program.exe", *arguments, cwd=folder)


def test_csharp(dist: Path, expected: np.ndarray) -> None:
    check(losses(csharp(dist, "example/Train.cs", "../..", STEPS)), expected)


def test_everything_in_csharp(dist: Path, tmp_path: Path) -> None:
    program = tmp_path / "Everything.cs"
    program.write_text(EVERYTHING_IN_CSHARP)
    assert csharp(dist, str(program)) == "all is well\n"
    onnx.checker.check_model(onnx.load(str(dist / "bindings/csharp/out.onnx")))


# ---------------------------------------------------------------------------- Swift and Objective-C


def test_objective_c_compiles(dist: Path) -> None:
    if not Path("/usr/include/GNUstep/Foundation").is_dir():
        pytest.skip("there is no Foundation here")
    gcc = run(tool("gcc"), "-print-file-name=include", cwd=dist).strip()
    flags = (
        "-xobjective-c",
        "-fobjc-runtime=gnustep-2.0",
        "-Wno-objc-missing-super-calls",
        "-fno-blocks",
        "-isystem/usr/include/GNUstep",
        f"-isystem{gcc}",
    )
    include = ("-Iinclude", "-I../CMinbuild/include")
    folder = dist / "bindings/swift/Sources/MinbuildObjC"
    for there in (0, 1):
        parts = [f"-DMB_WITH_{part.upper()}={there}" for part in lenet.PARTS]
        run(*CC, *flags, *include, *parts, "-c", "MBTrainingSession.m", "-o", "session.o", cwd=folder)


def test_swift(dist: Path, expected: np.ndarray) -> None:
    folder = dist / "bindings/swift"
    assert '.define("MB_WITH_EXPORT")' in (folder / "Package.swift").read_text()
    check(losses(run(tool("swift"), "run", "TrainExample", "../..", STEPS, cwd=folder)), expected)


# ---------------------------------------------------------------------------- what is generated

LAYOUT = """
#include <stddef.h>
#include "minbuild/trainer.h"
{checks}
int main(void) {{ return 0; }}
"""


def test_header_is_read_as_compilers_read_it(dist: Path, tmp_path: Path) -> None:
    header = read_header()
    checks = [f'_Static_assert({name} == {value}, "{name}");' for name, value in header.constants]
    for struct in header.structs:
        checks.append(f'_Static_assert(sizeof({struct.name}) == {struct.size}, "{struct.name}");')
        checks += [
            f'_Static_assert(offsetof({struct.name}, {m.name}) == {m.offset}, "{struct.name} {m.name}");'
            for m in struct.members
        ]
    assert len(header.structs) == 7 and ("MB_UNSUPPORTED", 9) in header.constants
    (tmp_path / "layout.c").write_text(LAYOUT.format(checks="\n".join(checks)))
    include = f"-I{dist / 'include'}"
    run(*CC, "-target", "wasm32-freestanding", "-std=c11", include, "-c", "layout.c", cwd=tmp_path)


def test_languages() -> None:
    assert wanted_languages(["js,Kotlin", "c++"]) == ("cpp", "java", "js")
    with pytest.raises(BadInput, match="--bindings cobol: unknown"):
        wanted_languages(["cobol"])


def test_only_what_is_asked_for() -> None:
    files = binding_files(("cpp",), frozenset(), {})
    assert files and all(name.startswith("bindings/cpp/") for name in files)
    assert not binding_files((), frozenset(), {})
