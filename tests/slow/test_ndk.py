"""Trainers for Android through a toolchain file with the NDK's interface: the NDK's own where ANDROID_NDK names one, a
stand-in everywhere else.

python -m pytest tests/slow/test_ndk.py
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from case_sets import folders  # noqa: E402
from commands import Command, command_fixture  # noqa: E402, F401
from stand_in_ndk import ABIS, make_ndk  # noqa: E402

from minbuild.formats import elf  # noqa: E402
from minbuild.toolchain import ALLOWED_IMPORTS, find_emulator, parse_target  # noqa: E402

# Tags of the dynamic section, types and flags of segments.
NEEDED, SONAME, TEXTREL, FLAGS, GNU_HASH = 1, 14, 22, 30, 0x6FFFFEF5
WRITABLE, EXECUTABLE = 2, 1
PAGE = {"arm64-v8a": 16384, "armeabi-v7a": 4096}
MACHINES = {"arm64-v8a": 183, "armeabi-v7a": 40}

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")


@pytest.fixture(scope="module")
def toolchain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    installed = os.environ.get("ANDROID_NDK") or os.environ.get("ANDROID_NDK_HOME")
    if installed:
        return Path(installed) / "build" / "cmake" / "android.toolchain.cmake"
    # With the small pages of the compilers before r28, which the package must not take over.
    return make_ndk(tmp_path_factory.mktemp("ndk"), page=4096)


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("case", ("lenet", "bert_tiny"))
def test_a_trainer_for_android(
    case: str,
    abi: str,
    toolchain_file: Path,
    minbuild: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    artifacts = next((f for f in folders() if f.name == case), None)
    if artifacts is None:
        pytest.skip(f"the artifacts of {case} are not here")
    target, out = ABIS[abi][0], tmp_path / "dist"
    arguments = ("reduce", artifacts, "--no-analysis", "--out", out, "--target", target)
    said = minbuild(*arguments, "--cmake-toolchain", toolchain_file)
    assert said.code == 0, said.err
    library = (out / "lib" / target / "libminbuild.so").read_bytes()
    _loads_on_android(library, abi)
    report = json.loads((out / "report" / "report.json").read_text())["targets"][0]
    assert report["target"] == target and report["trimmed"]["file"] == len(library)
    assert sum(row["bytes"] for row in report["rows"]) == len(library)
    assert sum(row["trimmed_file"] for row in report["sections"]) == len(library)
    assert any(flag == f"-DANDROID_ABI={abi}" for flag in report["flags"])
    if find_emulator(parse_target(target)) is not None:
        assert "agrees with this machine's build" in report["verification"]["text"]


def _loads_on_android(library: bytes, abi: str) -> None:
    """What Android's loader wants: a soname, section headers, a GNU hash table, pages of 16 KiB on 64-bit machines, no
    segment to be written and run, no relocations of code, and nothing from libraries that may not be there."""
    file = elf.parse("libminbuild.so", library)
    assert (file.kind, file.machine) == (3, MACHINES[abi])
    assert {s.name for s in file.sections} >= {".dynsym", ".dynstr", ".dynamic", ".text"}
    for kind, alignment, flags in _segments(library, file.bits):
        assert flags & (WRITABLE | EXECUTABLE) != WRITABLE | EXECUTABLE or kind != elf.LOAD
        assert kind != elf.LOAD or alignment >= PAGE[abi]
    dynamic = _dynamic(library, file)
    section = next(s for s in file.sections if s.name == ".dynstr")
    strings = library[section.offset : section.offset + section.size]
    names = {
        tag: [strings[v : strings.index(b"\0", v)] for t, v in dynamic if t == tag]
        for tag in (NEEDED, SONAME)
    }
    assert names[SONAME] == [b"libminbuild.so"]
    assert set(names[NEEDED]) <= {b"libc.so", b"libm.so", b"libdl.so"}
    tags = dict(dynamic)
    assert GNU_HASH in tags and TEXTREL not in tags and not tags.get(FLAGS, 0) & 4
    symbols = file.symbols(elf.DYNSYM)
    assert all(s.name.startswith("mb_") for s in symbols if s.defined)
    assert {s.name for s in symbols if not s.defined and s.name} <= ALLOWED_IMPORTS


def _segments(library: bytes, bits: int) -> list[tuple[int, int, int]]:
    """Type, alignment and flags of each."""
    place, count, layout = (32, 56, "<IIQQQQQQ") if bits == 64 else (28, 44, "<IIIIIIII")
    (start,) = struct.unpack_from("<Q" if bits == 64 else "<I", library, place)
    (number,) = struct.unpack_from("<H", library, count)
    size = struct.calcsize(layout)
    rows = [struct.unpack_from(layout, library, start + i * size) for i in range(number)]
    return [(row[0], row[7], row[1] if bits == 64 else row[6]) for row in rows]


def _dynamic(library: bytes, file: elf.Elf) -> list[tuple[int, int]]:
    section = next(s for s in file.sections if s.name == ".dynamic")
    pairs = struct.iter_unpack("<qQ" if file.bits == 64 else "<iI", library[section.offset :][: section.size])
    return [(tag & 0xFFFFFFFF, value) for tag, value in pairs]
