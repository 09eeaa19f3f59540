"""Where loops end in the machine code of x86-64.

Intel's processors before Ice Lake decode a branch anew each time where it lies across a boundary of 32 bytes or ends at
one, together with the comparison before it ("Mitigations for Jump Conditional Code Erratum", Intel, 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packed_model import packed_artifacts

from minbuild.codegen.library_builder import build_checked
from minbuild.formats import elf_format
from minbuild.options.build_options import ON, BuildOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, parse_target

BOUNDARY = 32
# Multiplications with additions of a loop of a tile: two vectors of AVX2 by six rows at least, and that share of it.
MANY, MOST = 12, 0.4
FUSED = ("cmp", "test", "dec", "inc", "add", "sub", "and")  # with a branch that follows them


def is_cut(first: int, end: int) -> bool:
    """True of a branch that takes the bytes from `first` up to before `end` if a boundary lies within or at its end."""
    return first // BOUNDARY != end // BOUNDARY


def loop_ends(code: list[Any]) -> Iterator[tuple[int, int]]:
    """The place and the end of the last branch of every loop of a tile."""
    places = {found.address: i for i, found in enumerate(code)}
    for i, found in enumerate(code):
        begin = places.get(_target(found), i + 1)
        body = code[begin : i + 1]
        if begin > i or any(_target(each) <= each.address for each in body[:-1]):
            continue
        before = code[i - 1]
        fused = before.mnemonic in FUSED and found.mnemonic != "jmp"
        first = before.address if fused else found.address
        products = sum(each.mnemonic.startswith("vfmadd") for each in body)
        if products >= max(MANY, MOST * len(body)):
            yield first, found.address + found.size


def _target(found: Any) -> int:
    """Where an instruction jumps to, or the next one."""
    if found.mnemonic.startswith("j") and found.op_str.startswith("0x"):
        return int(found.op_str, 16)
    return found.address + found.size


def test_cut() -> None:
    assert not is_cut(32, 63) and not is_cut(54, 63)
    assert is_cut(55, 64), "it ends at the boundary"
    assert is_cut(62, 65) and is_cut(60, 69)


def test_no_loop_of_a_tile_is_cut(tmp_path: Path) -> None:
    capstone = pytest.importorskip("capstone")
    options = BuildOptions(avx512=ON)
    model = compile_model(packed_artifacts(tmp_path), {}, {})
    contents = contents_of([model], build_options=options)
    target = parse_target("x86_64-linux-gnu")
    library = build_checked(
        contents, model.registry, target, find_toolchain(build_options=options)
    ).built.shared
    (text,) = (s for s in elf_format.parse("library", library).sections if s.name == ".text")
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.skipdata = True
    code = list(machine.disasm(library[text.offset : text.offset + text.size], text.address))
    ends = list(loop_ends(code))
    assert len(ends) > 10
    assert not [hex(first) for first, end in ends if is_cut(first, end)]
