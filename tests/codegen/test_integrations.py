"""`--integration`: each package is built by its tool where that is here, runs its sample, and follows its schema."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
from places import GOLDEN
from programs import CC, CXX, run, tool
from quiet_progress import Quiet
from sample_losses import expected_losses

from minbuild.codegen.integrations import INTEGRATIONS, bindings_of, parse_integrations
from minbuild.codegen.package_layout import abi_version
from minbuild.codegen.sbom import SBOM
from minbuild.errors import BadInput
from minbuild.options.build_options import BuildOptions
from minbuild.pipeline import Request, reduce
from minbuild.training.library import TRAIN, Library, Session

STEPS = 12
# The part of Arduino.h that the sketch uses, on this machine.
ARDUINO = """
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
struct Printer {
  void begin(long) {}
  void println(const char* text) { printf("%s\\n", text); }
  void println(float number, int digits) { printf("%.*f\\n", digits, static_cast<double>(number)); }
};
static Printer Serial;
"""
MAIN = """
#include "Arduino.h"
#include "Train.ino"
int main() {{ setup(); for (int i = 0; i < {steps}; ++i) loop(); }}
"""
# The fields that the specification of Arduino libraries asks for, and its categories.
REQUIRED = {
    "name",
    "version",
    "author",
    "maintainer",
    "sentence",
    "paragraph",
    "category",
    "url",
    "architectures",
}
CATEGORIES = {"Communication", "Data Processing", "Data Storage", "Device Control", "Display", "Other", "Sensors"} | {
    "Signal Input/Output", "Timing", "Uncategorized"
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[BuildOptions(), BuildOptions(flavor="compiled", initial_checkpoint="compact")],
    ids=["interpreted", "compiled"],
)
def dist(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a plan, and one with neither a plan nor names in its first checkpoint."""
    folder = tmp_path_factory.mktemp("integrations") / "dist"
    options = request.param
    names = ("arduino,platformio", "cargo", "esp-idf,zephyr", "micropython")
    reduce(
        Request((GOLDEN / "dense",), folder, analysis=False, build_options=options, integrations=names),
        Quiet(),
    )
    return folder


def test_the_sketch_trains(dist: Path, tmp_path: Path) -> None:
    """Compiled as the IDE does it: all that is in src, with src as the only include folder, and the sketch."""
    library = dist / "integrations/arduino"
    (tmp_path / "Arduino.h").write_text(ARDUINO)
    (tmp_path / "main.cc").write_text(MAIN.format(steps=STEPS))
    flags = ("-w", "-O1", f"-I{library / 'src'}", f"-I{library / 'examples/Train'}", f"-I{tmp_path}")
    sources = sorted((library / "src").rglob("*.cc"))
    run(*CXX, *flags, "-fno-exceptions", "-fno-rtti", "main.cc", *sources, "-o", "train", cwd=tmp_path)
    losses = [float(line) for line in run("./train", cwd=tmp_path).split()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)


def test_the_library_is_described(dist: Path) -> None:
    folder = dist / "integrations/arduino"
    lines = (folder / "library.properties").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found.keys() >= REQUIRED and all(found[name] for name in REQUIRED)
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["version"]) and found["category"] in CATEGORIES
    assert (
        re.fullmatch(r"[\w][\w .-]{0,62}", found["name"]) and (folder / "src" / found["includes"]).is_file()
    )
    manifest = json.loads((folder / "library.json").read_text())
    assert (
        manifest.keys() >= {"name", "version", "description", "keywords"}
        and manifest["version"] == found["version"]
    )
    for example in manifest["examples"]:
        assert all((folder / example["base"] / name).is_file() for name in example["files"])


# Functions of the build systems of boards, as far as the packages call them, on this machine.
SYSTEMS = {
    "esp-idf": """
function(idf_component_register)
  cmake_parse_arguments(one "" "" "SRCS;INCLUDE_DIRS;PRIV_INCLUDE_DIRS;PRIV_REQUIRES" ${ARGN})
  add_library(${COMPONENT_LIB} STATIC ${one_SRCS})
  target_include_directories(${COMPONENT_LIB} PUBLIC ${one_INCLUDE_DIRS} PRIVATE ${one_PRIV_INCLUDE_DIRS})
  if(one_PRIV_REQUIRES)
    target_link_libraries(${COMPONENT_LIB} PRIVATE ${one_PRIV_REQUIRES})
  endif()
endfunction()
set(COMPONENT_LIB minbuild)
add_subdirectory(PACKAGE/minbuild minbuild)
set(COMPONENT_LIB main)
add_subdirectory(PACKAGE/example/main main)
file(WRITE ${CMAKE_BINARY_DIR}/host.cc "extern \\"C\\" void app_main(); int main() { app_main(); }")
add_executable(train ${CMAKE_BINARY_DIR}/host.cc)
target_link_libraries(train PRIVATE main)
""",
    "zephyr": """
macro(zephyr_include_directories)
  include_directories(${ARGN})
endmacro()
macro(zephyr_library_named name)
  add_library(${name} STATIC)
endmacro()
macro(zephyr_library_sources)
  target_sources(minbuild PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_include_directories)
  target_include_directories(minbuild PRIVATE ${ARGN})
endmacro()
macro(zephyr_library_compile_options)
  target_compile_options(minbuild PRIVATE ${ARGN})
endmacro()
set(CONFIG_MINBUILD y)
include(PACKAGE/CMakeLists.txt)
add_executable(train PACKAGE/sample/main.cc)
target_include_directories(train PRIVATE PACKAGE/../../include)
target_link_libraries(train PRIVATE minbuild)
""",
}


@pytest.mark.compilers
@pytest.mark.parametrize("system", SYSTEMS)
def test_boards_build_and_train(dist: Path, tmp_path: Path, system: str) -> None:
    """With CMake itself, and functions of the build system's names that do the like for this machine."""
    text = SYSTEMS[system].replace("PACKAGE", (dist / "integrations" / system).as_posix())
    head = "cmake_minimum_required(VERSION 3.16)\nproject(train C CXX)\nset(CMAKE_POSITION_INDEPENDENT_CODE ON)\n"
    (tmp_path / "CMakeLists.txt").write_text(head + text)
    run(tool("cmake"), "-S", ".", "-B", "build", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    losses = [float(line) for line in run("build/train", cwd=tmp_path).split()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)


def test_boards_packages_are_described(dist: Path) -> None:
    """The fields that west and the component manager ask for."""
    module = (dist / "integrations/zephyr/zephyr/module.yml").read_text()
    assert "name: minbuild" in module and re.search(r"build:\n  cmake: \.\n  kconfig: Kconfig\n", module)
    component = (dist / "integrations/esp-idf/minbuild/idf_component.yml").read_text()
    assert re.search(r'^version: "\d+\.\d+\.\d+"$', component, re.MULTILINE) and 'idf: ">=5.0"' in component


CONSUMER = """
cmake_minimum_required(VERSION 3.13)
project(consumer C)
find_package(minbuild 0.1 CONFIG REQUIRED)
add_executable(consumer SOURCE)
target_link_libraries(consumer PRIVATE minbuild::minbuild_static)
add_executable(sharing SOURCE)
target_link_libraries(sharing PRIVATE minbuild::minbuild)
"""


@pytest.mark.compilers
def test_what_cmake_installs_is_found(dist: Path, tmp_path: Path) -> None:
    """By find_package, and by pkg-config where it is here; the sample runs from the installed model."""
    prefix, sample = tmp_path / "prefix", next((dist / "sample").glob("*.c"))
    build = ("-S", dist, "-B", "build", "-DMINBUILD_SAMPLE=OFF", f"-DCMAKE_INSTALL_PREFIX={prefix}")
    run(tool("cmake"), *build, "-DCMAKE_INSTALL_LIBDIR=lib", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    run("cmake", "--install", "build", cwd=tmp_path)
    assert (prefix / "lib" / f"libminbuild.so.{abi_version()}").is_symlink()
    assert (prefix / "share/minbuild/LICENSE").is_file() and (prefix / "share/minbuild" / SBOM).is_file()
    (tmp_path / "consumer").mkdir()
    (tmp_path / "consumer/CMakeLists.txt").write_text(CONSUMER.replace("SOURCE", str(sample)))
    run("cmake", "-S", "consumer", "-B", "used", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    run("cmake", "--build", "used", cwd=tmp_path)
    static, shared = (
        run(f"used/{name}", prefix / "share/minbuild", 3, cwd=tmp_path) for name in ("consumer", "sharing")
    )
    assert static == shared and static
    described = (prefix / "lib/pkgconfig/minbuild.pc").read_text()
    assert f"prefix={prefix}\n" in described and "Libs: -L${libdir} -lminbuild\n" in described
    if shutil.which("pkg-config"):
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "minbuild"],
            env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")},
            capture_output=True,
            text=True,
            check=True,
        )
        run(*CC, "-w", sample, *found.stdout.split(), "-o", "packaged", cwd=tmp_path)


class Interpreter:
    """The module `minbuild` of MicroPython, as far as the program uses it, over the package's own library."""

    def __init__(self, dist: Path) -> None:
        file = dist / "model/trainer.plan"
        self.plan = file.read_bytes() if file.exists() else b""
        self.checkpoint = (dist / "model/checkpoint").read_bytes()
        self.library = Library(next((dist / "lib").glob("*/libminbuild.so")))

    def TrainingSession(self, sizes: object = ()) -> Interpreter:
        self.session = Session(self.library, self.plan, self.checkpoint)
        return self

    def train_step(self, inputs: list[tuple[array[float], tuple[int, ...]]]) -> list[float]:
        batch = [np.array(data).astype(data.typecode).reshape(sizes) for data, sizes in inputs]
        return [float(output) for output in self.session.run(TRAIN, batch)]

    def optimizer_step(self) -> None:
        self.session.optimizer_step()

    def lazy_reset_grad(self) -> None:
        self.session.lazy_reset_grad()


def test_the_program_for_micropython_trains(
    dist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its batches are those of the sketch, on an interpreter with doubles too. tests/slow/test_micropython.py builds
    the module with MicroPython itself."""
    folder = dist / "integrations/micropython"
    monkeypatch.setitem(sys.modules, "minbuild", Interpreter(dist))
    exec(compile((folder / "train.py").read_text(), "train.py", "exec"), {})
    losses = [float(line) for line in capsys.readouterr().out.split()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)
    described = (folder / "minbuild/micropython.mk").read_text()
    wrappers = {path.name for path in (folder / "minbuild").glob("*.cpp")}
    assert wrappers == set(re.findall(r"/(\w+\.cpp)$", described, re.MULTILINE))
    for wrapper in wrappers:
        included = re.search(r'#include "(.+)"', (folder / "minbuild" / wrapper).read_text())
        assert included and (dist / "src" / included[1]).is_file()


def test_the_crate_trains(dist: Path, tmp_path: Path) -> None:
    cargo = tool("cargo")
    folder = dist / "integrations/cargo"
    steps = ("--", dist, 40)
    said = run(
        cargo,
        "run",
        "--offline",
        "--quiet",
        "--target-dir",
        tmp_path,
        "--example",
        "train",
        *steps,
        cwd=folder,
    )
    losses = [float(line) for line in said.split()]
    assert len(losses) == 40 and losses[-1] < losses[0], "one batch again and again is learned"
    assert (folder / "trained.checkpoint").stat().st_size > (dist / "model/checkpoint").stat().st_size


def test_names() -> None:
    assert parse_integrations(["npm,Cargo", "arduino"], 1) == ("arduino", "cargo", "npm")
    assert bindings_of(("arduino", "npm", "aar", "swiftpm")) == ("js", "java", "swift")
    boards = {"arduino", "platformio", "esp-idf", "zephyr", "micropython"}
    packages = {"cargo", "conan"}
    assert boards | packages | {"npm", "aar", "swiftpm"} == set(INTEGRATIONS)
    with pytest.raises(BadInput, match="--integration bazel: unknown. There are arduino"):
        parse_integrations(["bazel"], 1)
    with pytest.raises(BadInput, match="--integration arduino: its sample is for one model"):
        parse_integrations(["npm,arduino"], 2)
