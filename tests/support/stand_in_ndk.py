"""A folder that builds like the Android NDK, for where none is installed: the same toolchain file interface, triples,
compiler and linker flags, folders, and system libraries with the same names. Compiler and linker are those of the
default toolchain; headers and the C library of static programs are musl's, so such programs run under emulators.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minbuild.toolchain import find_toolchain
from minbuild.toolchain.cache import user_cache
from minbuild.toolchain.zig import Zig

# Triples of the ABIs: of folders, of the compiler without the version of Android, and of musl.
ABIS = {
    "arm64-v8a": ("aarch64-linux-android", "aarch64-none-linux-android", "aarch64-linux-musl"),
    # Bionic's functions take floats in general registers, as musleabi's do.
    "armeabi-v7a": ("arm-linux-androideabi", "armv7-none-linux-androideabi", "arm-linux-musleabi"),
}
_CPU = {"aarch64-linux-musl": "-mcpu=baseline", "arm-linux-musleabi": "-mcpu=cortex_a7"}
LEVEL = 23
# What bionic exports of what C programs call.
_EXPORTED = (
    *("memcpy", "memmove", "memset", "memcmp", "strlen", "strcmp", "mmap", "munmap", "madvise"),
    *("open", "close", "read", "write", "lseek", "fsync", "rename", "unlink", "__errno"),
    *(
        "__stack_chk_fail",
        "__write_chk",
        "__read_chk",
        "__open_2",
        "__memcpy_chk",
        "printf",
        "puts",
        "fputs",
        "fprintf",
    ),
    *("malloc", "free", "exit", "abort", "__libc_init", "__aeabi_memcpy", "__aeabi_memset", "__aeabi_memclr"),
)
# As the NDK's own file does it: the interface to its users, what it tells CMake, and the flags.
_TOOLCHAIN_FILE = """cmake_minimum_required(VERSION 3.10)
set(CMAKE_SYSTEM_VERSION 1)  # CMake's own search for an NDK stays off
get_filename_component(NDK "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT ANDROID_ABI)
  set(ANDROID_ABI armeabi-v7a)
endif()
if(NOT ANDROID_PLATFORM)
  set(ANDROID_PLATFORM android-21)
endif()
string(REPLACE "android-" "" ANDROID_PLATFORM_LEVEL "${ANDROID_PLATFORM}")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_ABI ANDROID_PLATFORM)
set(ANDROID TRUE)
set(CMAKE_SYSTEM_NAME Android)
set(CMAKE_ANDROID_ARCH_ABI "${ANDROID_ABI}")
if(ANDROID_ABI STREQUAL "arm64-v8a")
  set(CMAKE_SYSTEM_PROCESSOR aarch64)
  set(triple aarch64-linux-android)
  set(llvm_triple aarch64-none-linux-android${ANDROID_PLATFORM_LEVEL})
elseif(ANDROID_ABI STREQUAL "armeabi-v7a")
  set(CMAKE_SYSTEM_PROCESSOR armv7-a)
  set(triple arm-linux-androideabi)
  set(llvm_triple armv7-none-linux-androideabi${ANDROID_PLATFORM_LEVEL})
  set(machine "-march=armv7-a -mthumb")
else()
  message(FATAL_ERROR "Invalid Android ABI: ${ANDROID_ABI}.")
endif()
set(root "${NDK}/toolchains/llvm/prebuilt/here")
set(CMAKE_SYSROOT "${root}/sysroot")
set(CMAKE_LIBRARY_ARCHITECTURE "${triple}")
list(APPEND CMAKE_FIND_ROOT_PATH "${NDK}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
foreach(language IN ITEMS C CXX)
  set(CMAKE_${language}_COMPILER_TARGET "${llvm_triple}")
  set(CMAKE_${language}_STANDARD_LIBRARIES_INIT "-latomic -lm")
  set(CMAKE_${language}_FLAGS_INIT "-g -DANDROID -fdata-sections -ffunction-sections -funwind-tables \\
-fstack-protector-strong -no-canonical-prefixes -D_FORTIFY_SOURCE=2 ${machine} -Wformat -Werror=format-security")
endforeach()
set(CMAKE_C_COMPILER "${root}/bin/clang")
set(CMAKE_CXX_COMPILER "${root}/bin/clang++")
set(CMAKE_AR "${root}/bin/llvm-ar" CACHE FILEPATH "Archiver")
set(CMAKE_RANLIB "${root}/bin/llvm-ranlib" CACHE FILEPATH "Ranlib")
set(CMAKE_STRIP "${root}/bin/llvm-strip" CACHE FILEPATH "Strip")
set(flags "-static-libstdc++ -Wl,--build-id=sha1 -Wl,--no-rosegment -Wl,--no-undefined-version -Wl,--fatal-warnings \\
-Wl,--no-undefined -Qunused-arguments")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${flags}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${flags} -Wl,--gc-sections")
set(CMAKE_POSITION_INDEPENDENT_CODE TRUE)
"""


def make_ndk(folder: Path, page: int | None = None) -> Path:
    """The path of the toolchain file. `page` is the page size that the compiler links 64-bit libraries for, if not
    its own: NDKs before r28 had 4096. Skips the test where a tool is missing."""
    zig = find_toolchain()
    assert isinstance(zig, Zig)
    strip = next(filter(None, map(shutil.which, ("llvm-strip", "llvm-strip-19", "llvm-strip-14"))), None)
    if strip is None or sys.platform == "win32":
        pytest.skip("needs llvm-strip")
    root = folder / "toolchains" / "llvm" / "prebuilt" / "here"
    driver = (
        f"-resource-dir={root}/lib/clang/22 --ld-path={root}/bin/ld.lld -Wno-unused-command-line-argument"
        f"{f' -Wl,-z,max-page-size={page}' if page else ''}"
    )
    # Like the NDK's, the compiler finds the headers of its C library, and nothing else, in the sysroot.
    _script(root / "bin" / "clang", f"{zig.home}/zig clang {driver}")
    _script(root / "bin" / "clang++", f"{zig.home}/zig clang --driver-mode=g++ -nostdlib++ {driver}")
    for name, command in (("ld.lld", "ld.lld"), ("llvm-ar", "ar"), ("llvm-ranlib", "ranlib")):
        _script(root / "bin" / name, f"{zig.home}/zig {command}")
    _script(root / "bin" / "llvm-strip", strip)
    (root / "lib" / "clang" / "22" / "lib").mkdir(parents=True)
    (root / "lib" / "clang" / "22" / "include").symlink_to(zig.home / "lib" / "include")
    for abi in ABIS:
        _sysroot(root, zig, abi)
    file = folder / "build" / "cmake" / "android.toolchain.cmake"
    file.parent.mkdir(parents=True)
    file.write_text(_TOOLCHAIN_FILE)
    return file


def _script(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The driver starts itself for each source, and the linker, from wherever it is.
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def _sysroot(root: Path, zig: Zig, abi: str) -> None:
    """Headers and libraries of one ABI. The shared libraries have names to link against and no contents."""
    folder, triple, musl = ABIS[abi]
    headers, usr = zig.home / "lib" / "libc" / "include", root / "sysroot" / "usr"
    arch = musl.partition("-")[0]
    for source in (f"{arch}-linux-any", f"{arch}-linux-musl"):
        shutil.copytree(headers / source, usr / "include" / folder, dirs_exist_ok=True)
    for source in ("any-linux-any", "generic-musl"):
        shutil.copytree(headers / source, usr / "include", dirs_exist_ok=True)
    target = f"{triple}{LEVEL}"
    runtime = root / "lib" / "clang" / "22" / "lib" / target.replace("androideabi", "android")
    libraries = usr / "lib" / folder / str(LEVEL)
    for place in (runtime, libraries):
        place.mkdir(parents=True)
    parts = _static_parts(musl)
    shutil.copy(next(p for p in parts if p.name == "libcompiler_rt.a"), runtime / "libclang_rt.builtins.a")
    shutil.copy(next(p for p in parts if p.name == "crt1.o"), libraries / "crtbegin_static.o")
    archives = [p for p in parts if p.suffix == ".a"]
    for path in archives:
        shutil.copy(path, libraries / f"musl-{path.name}")
    (libraries / "libc.a").write_text(f"GROUP({' '.join(f'musl-{path.name}' for path in archives)})\n")
    stub = root / f"{abi}.c"
    compiler = (root / "bin" / "clang", f"--target={target}", "-fno-builtin", "-nostdlib")
    for name in ("crtbegin_so", "crtend_so", "crtbegin_dynamic", "crtend_android"):
        stub.write_text("int main(void);\nvoid _start(void) { main(); }\n" if "dynamic" in name else "")
        _run(*compiler, "-fPIC", "-c", stub, "-o", libraries / f"{name}.o")
    for name in ("libatomic.a", "libunwind.a", "libm.a"):
        _run(root / "bin" / "llvm-ar", "rc", libraries / name)
    stub.write_text("".join(f"void {name}(void) {{}}\n" for name in _EXPORTED))
    for name in ("libc.so", "libm.so", "libdl.so"):
        _run(*compiler, "-shared", "-fPIC", stub, f"-Wl,-soname,{name}", "-o", libraries / name)


@functools.cache
def _static_parts(musl: str) -> list[Path]:
    """What a static program is linked with, built by the default toolchain where it was not yet."""
    zig = find_toolchain()
    assert isinstance(zig, Zig)
    cache = user_cache().compiler
    source, program = cache / "stand-in.c", cache / f"stand-in-{musl}"
    cache.mkdir(parents=True, exist_ok=True)
    source.write_text("int main(void) { return 0; }\n")
    compiler = (zig.home / "zig", "cc", "-target", musl, _CPU[musl], "-static", "-Oz", "-v")
    local = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache / "local")}
    said = subprocess.run(
        [*compiler, source, "-o", program],
        env={**os.environ, **local},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    link = next(line for line in said.splitlines() if line.startswith("ld.lld "))
    return [Path(word) for word in shlex.split(link) if word.endswith((".a", "crt1.o"))]


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
