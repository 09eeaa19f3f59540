"""Bindings: each trains LeNet on the same images and must see the same losses; without its compiler one is skipped."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import lenet
import numpy as np
import onnx
import pytest
from case_sets import load
from places import GOLDEN, TESTS
from programs import CC, CXX, page, run, serve, tool

from minbuild.codegen.bindings import binding_files, parse_languages, read_header
from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput
from minbuild.escape import c_literal
from minbuild.planning.compile import compile_model, compile_models
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import OPTIONAL
from minbuild.toolchain import build_library, find_toolchain, host_target, parse_target

STEPS = 60
PROGRAMS = TESTS / "codegen" / "bindings"


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


def test_programs_for_onnxruntime_web(dist: Path) -> None:
    shutil.copy(PROGRAMS / "ort_web.mjs", dist / "bindings/js")
    assert run(tool("node"), "ort_web.mjs", cwd=dist / "bindings/js") == "passed\n"


def test_everything_in_javascript(dist: Path) -> None:
    folder = dist / "bindings/js"
    shutil.copy(PROGRAMS / "everything.mjs", folder)
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


def test_everything_in_java(java: Path) -> None:
    run(
        "javac",
        "-cp",
        "classes",
        "-encoding",
        "utf8",
        "-d",
        "classes",
        PROGRAMS / "Everything.java",
        cwd=java,
    )
    assert execute_java(java, "Everything") == "all is well\n"
    onnx.checker.check_model(onnx.load(str(java / "out.onnx")))


def test_kotlin_compiles(java: Path) -> None:
    files = ("src/main/kotlin/ai/onnxruntime/Training.kt", PROGRAMS / "Step.kt")
    run(tool("kotlinc"), "-cp", "classes", *files, "-d", "kotlin", cwd=java)
    assert (java / "kotlin/StepKt.class").is_file()


# ---------------------------------------------------------------------------- C#


def csharp(dist: Path, program: str | Path, *arguments: object) -> str:
    """Compiles the binding with a program, and runs it."""
    folder, mono = dist / "bindings/csharp", tool("mono")
    sources = sorted(folder.glob("*.cs"))
    run(tool("mcs"), "-unsafe", "-warn:4", "-warnaserror", "-out:program.exe", *sources, program, cwd=folder)
    shutil.copy(archive(dist).with_name("libminbuild.so"), folder)
    return run(mono, "program.exe", *arguments, cwd=folder)


def test_csharp(dist: Path, expected: np.ndarray) -> None:
    check(losses(csharp(dist, "example/Train.cs", "../..", STEPS)), expected)


def test_everything_in_csharp(dist: Path) -> None:
    assert csharp(dist, PROGRAMS / "Everything.cs") == "all is well\n"
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
        parts = [f"-DMB_WITH_{part.upper()}={there}" for part in OPTIONAL]
        run(*CC, *flags, *include, *parts, "-c", "MBTrainingSession.m", "-o", "session.o", cwd=folder)


def test_swift(dist: Path, expected: np.ndarray) -> None:
    folder = dist / "bindings/swift"
    assert '"MB_WITH_EXPORT"' in (folder / "Package.swift").read_text()
    check(losses(run(tool("swift"), "run", "TrainExample", "../..", STEPS, cwd=folder)), expected)


# ---------------------------------------------------------------------------- refused batches, in words

REFUSALS = """\
6 input 'input' is float64, the model takes float32.
6 input 'input' has the shape [2, 1, 28, 27], the model takes [batch, 1, 28, 28].
6 input 'labels' has 3 along 'batch', input 'input' has 2.
6 input 'input' is empty along 'batch', which is 1 at least.
7 label 10 is outside 0..9 (sample 3 of input 'labels').
5 batch 5 is above the 4 this session has memory for. Create it with larger sizes.
5 batch 33 is above the 32 this session has memory for. Create it with larger sizes.
7 label -1 is outside 0..9 (sample 0 of input 'labels').
"""  # what each program prints: one mistake a line
COUNT = "1 1 input was given, the model takes 2: input, labels.\n"  # where inputs have no names


def test_refusals_in_javascript(dist: Path) -> None:
    shutil.copy(PROGRAMS / "refusals.mjs", dist / "bindings/js")
    assert run(tool("node"), "refusals.mjs", cwd=dist / "bindings/js") == REFUSALS


PAGES = """
import { TrainingSession } from "./index.js";
import assert from "node:assert/strict";
const page = "data:text/html,<p>Welcome</p>";
const files = { trainModel: "../../model/trainer.plan", checkpointState: "../../model/checkpoint" };
for (const name of ["wasm", "trainModel", "checkpointState"])
  await assert.rejects(
    TrainingSession.create({ ...files, [name]: page }), /^Error: data:.*Welcome.*: the server answered with a page/);
await TrainingSession.create(files); // what was refused is not kept
"""


def test_a_page_in_place_of_a_file_is_named_in_javascript(dist: Path) -> None:
    (dist / "bindings/js/pages.mjs").write_text(PAGES, "utf-8")
    run(tool("node"), "pages.mjs", cwd=dist / "bindings/js")


def test_refusals_in_cpp(dist: Path) -> None:
    folder = dist / "bindings/cpp"
    flags = (*CXX, "-fno-exceptions", f"-I{dist / 'include'}", "-I.")
    for words in ("", "-DMINBUILD_WORDS=0"):
        program = (*filter(None, [words]), PROGRAMS / "refusals.cc", archive(dist), "-o", "refusals")
        run(*flags, *program, cwd=folder)
        found = run("./refusals", cwd=folder)
        if words:  # the library's own text: what it expected where
            assert "input input: expected 1 as number 1 of type" in found and "is float64" not in found
        else:
            few = "6 input 'input' has more or fewer elements than its dimensions say.\n"
            assert found == REFUSALS + COUNT + few + "0 \n"


def test_refusals_in_java(java: Path) -> None:
    run("javac", "-cp", "classes", "-d", "classes", PROGRAMS / "Refusals.java", cwd=java)
    assert execute_java(java, "Refusals") == REFUSALS


def test_refusals_in_csharp(dist: Path) -> None:
    assert csharp(dist, PROGRAMS / "Refusals.cs") == REFUSALS + COUNT


def test_a_name_is_a_literal_of_c() -> None:
    """Whatever is in it, it ends no string and is no trigraph."""
    assert c_literal('a"?\\??/é\n') == r'"a\042\077\134\077\077/\303\251\012"'


# ---------------------------------------------------------------------------- libraries that do not save

MUTE = """
import { Tensor, TrainingSession, TrainerError } from "./index.js";
import assert from "node:assert/strict";
const session = await TrainingSession.create(
  { trainModel: "../../model/trainer.plan", checkpointState: "../../model/checkpoint" }); // of no model known here
const wrong = { input: new Tensor("float64", new Float64Array(784), [1, 1, 28, 28]), labels: new Tensor("int64", [0]) };
assert.throws(() => session.runTrainStep(wrong), /^TrainerError: input input: expected 1 as number 1/);
assert.throws(() => session.saveCheckpoint(), (error) => error instanceof TrainerError
  && error.message.includes("mb_write_checkpoint") && error.message.includes("--checkpoint-writing on"));
"""


@pytest.fixture(scope="module")
def mute(dist: Path, tmp_path_factory) -> Path:
    """The package, its libraries and bindings without the writing of checkpoints."""
    folder = tmp_path_factory.mktemp("mute")
    (model,) = compile_models((dist.parent / "artifacts",), {}, {})
    contents = replace(contents_of((model,)), checkpoint_writing=False)
    sources = emit_sources(contents, model.registry)
    here, module = (
        build_library(sources, target, find_toolchain()) for target in (host_target(), parse_target("wasm32"))
    )
    files = {**sources, **binding_files(("java", "js", "swift"), contents.optional, sources, module.shared)}
    files |= {"model/trainer.plan": model.plan_bytes, "model/checkpoint": model.checkpoint}
    files |= {"libminbuild.a": here.archive, "bindings/js/mute.mjs": MUTE.encode()}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_javascript_says_what_is_missing(mute: Path) -> None:
    run(tool("node"), "mute.mjs", cwd=mute / "bindings/js")


def test_java_links_without_saving(mute: Path) -> None:
    home = Path(tool("javac")).resolve().parents[1]
    include = [f"-I{p}" for p in (mute / "include", "src/main/cpp", home / "include", home / "include/linux")]
    flags = ("-std=c99", "-shared", "-fPIC", "-Wl,--no-undefined", *include)
    folder = mute / "bindings/java"
    run(*CC, *flags, "src/main/cpp/minbuild_jni.c", mute / "libminbuild.a", "-o", "mute.so", cwd=folder)
    assert b"Reduce again with --checkpoint-writing on." in (folder / "mute.so").read_bytes()


def test_swift_has_no_saving_either(mute: Path) -> None:
    assert "MB_WITH_" not in (mute / "bindings/swift/Package.swift").read_text()


# ---------------------------------------------------------------------------- frozen parameters


def test_a_loaded_checkpoint_with_frozen_parameters_stays(tmp_path: Path) -> None:
    """A later call had the memory that they were read from."""
    case = load(GOLDEN / "transfer")
    model = compile_model(GOLDEN / "transfer", {}, {})
    sources = emit_sources(contents_of([model]), model.registry)
    module = build_library(sources, parse_target("wasm32"), find_toolchain())
    batch = [
        (name, array.dtype.name, array.ravel().tolist(), array.shape)
        for name, array in zip(case.inputs, case.batch(0), strict=True)
    ]
    files = binding_files(("js",), frozenset(), sources, module.shared)
    files |= {"model/trainer.plan": model.plan_bytes, "model/checkpoint": model.checkpoint}
    files |= {"bindings/js/batch.json": json.dumps(batch).encode()}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    shutil.copy(PROGRAMS / "frozen.mjs", tmp_path / "bindings/js")
    run(tool("node"), "frozen.mjs", cwd=tmp_path / "bindings/js")


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
    assert parse_languages(["js,Kotlin", "c++"]) == ("cpp", "java", "js")
    with pytest.raises(BadInput, match="--bindings cobol: unknown"):
        parse_languages(["cobol"])
    assert parse_languages(["cpp,csharp,js"], files=False) == ("cpp", "csharp", "js")
    for name in ("java", "swift"):
        with pytest.raises(BadInput, match=f"--bindings {name}: makes sessions from files"):
            parse_languages(["cpp", name], files=False)


def test_only_what_is_asked_for() -> None:
    files = binding_files(("cpp",), frozenset(), {})
    assert files and all(name.startswith("bindings/cpp/") for name in files)
    assert not binding_files((), frozenset(), {})
