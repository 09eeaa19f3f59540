"""Packages compile without a warning under the compilers that users bring: gcc, clang and arm-none-eabi-gcc.

Nothing is installed here: a compiler that this machine lacks is skipped by name. Debian's packages are gcc, clang,
gcc-arm-none-eabi with libnewlib-arm-none-eabi, and cmake.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from case_sets import GOLDEN
from commands import command_fixture  # noqa: F401  the fixture `minbuild`

pytestmark = pytest.mark.compilers
BARE_METAL = """set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS_INIT "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard")
set(CMAKE_CXX_FLAGS_INIT "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard")
"""
COMPILERS = {
    "gcc": ("gcc", "g++"),
    "clang": ("clang", "clang++"),
    "arm-none-eabi": ("arm-none-eabi-gcc", "arm-none-eabi-g++"),
}
SETS = ("embedding", "residual")  # among them: convolution, normalization, Gather, several losses


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[Path]]:
    """Packages by whether they use files: bare metal has none."""
    from minbuild.cli import main as cli

    made: dict[bool, list[Path]] = {True: [], False: []}
    for name in SETS:
        for files in made:
            out = tmp_path_factory.mktemp("package") / name
            options = ("--with", "properties,buffers,export") if files else ("--file-io", "off")
            with pytest.raises(SystemExit) as left:
                cli.app(["reduce", str(GOLDEN / name), "--out", str(out), "--no-analysis", *options])
            assert not left.value.code
            made[files].append(out)
    return made


@pytest.mark.parametrize("name", COMPILERS)
def test_packages_compile_without_a_warning(name: str, packages, tmp_path: Path) -> None:
    c, cxx = COMPILERS[name]
    for program in (c, cxx, "cmake", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    bare = name == "arm-none-eabi"
    (tmp_path / "toolchain.cmake").write_text(BARE_METAL)
    for package in packages[not bare]:
        build = tmp_path / package.name
        chosen = (
            (f"-DCMAKE_TOOLCHAIN_FILE={tmp_path}/toolchain.cmake",)
            if bare
            else (f"-DCMAKE_C_COMPILER={c}", f"-DCMAKE_CXX_COMPILER={cxx}")
        )
        _run("cmake", "-S", str(package), "-B", str(build), "-DMINBUILD_SAMPLE=OFF", *chosen)
        output = _run("cmake", "--build", str(build), *(("--target", "minbuild_static") if bare else ()))
        assert "warning" not in output.lower(), output[-4000:]
        if not bare:
            sample = (c, "-std=c99", "-Wall", "-Wextra", "-pedantic", f"-I{package}/include", "-fsyntax-only")
            assert _run(*sample, str(package / "sample/train.c")) == ""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr
