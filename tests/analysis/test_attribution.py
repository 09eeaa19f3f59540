"""Every byte of a library has one owner, and it is the right one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attributed_library import KERNELS, Library, rows

from minbuild import ir as model
from minbuild.analysis.attribution import attribute
from minbuild.errors import ToolchainFailed
from minbuild.formats import elf
from minbuild.formats import symbol_names as names
from minbuild.formats import symbol_origins as owners
from minbuild.ir.size_report import KINDS


def test_every_byte_has_one_owner(library: Library) -> None:
    attribution = library.attribution()
    assert attribution.total == len(library.stripped) == sum(s.bytes for s in attribution.shares)
    covered = sorted((p.offset, p.bytes) for s in attribution.shares for p in s.pieces)
    position = 0
    for offset, size in covered:
        assert offset == position and size > 0
        position += size
    assert position == len(library.stripped)
    assert {s.owner.kind for s in attribution.shares} <= set(KINDS)
    assert not any("other" in s.owner.name for s in attribution.shares)


def test_owners_are_the_right_ones(library: Library) -> None:
    found = rows(library.attribution())
    sizes = {names.parts(s.name)[0]: s.size for s in library.binary.symbols}
    for body in ("Cubed", "Doubled"):
        sizes[body] = next(s.size for s in library.binary.symbols if f"each<minbuild::{body}" in s.name)
    assert found["operator", "gemm"] == sizes["gemm"]
    own = ("softmax", "softmax_grad", "largest", "Cubed")  # a shared loop around its own body
    assert found["operator", "softmax"] == sum(sizes[name] for name in own)
    assert found["shared", "Doubled (math.h)"] == sizes["Doubled"]
    assert found["shared", "dot (math.h)"] == sizes["dot"]
    assert found["shared", "shared_exp (math.cc)"] == sizes["shared_exp"]
    assert found["shared", "powers (math.cc)"] == 64
    functions = ("mb_train_step", "mb_last_error", "zero", "table")
    assert found["runtime", "session"] >= sum(sizes[f] for f in functions)
    assert found["overhead", "ELF header"] in (52, 64)
    texts = ("bad plan: the table is damaged", "no such parameter")
    literals = sum(size for (kind, _), size in found.items() if kind == "literal")
    assert literals >= sum(len(t) + 1 for t in texts)
    if any(s.name.startswith(".L.str") for s in library.binary.symbols):  # not every machine keeps labels
        assert ("literal", "literals of kernels.runtime.session.cc") in found
    for what in (
        "program headers",
        "section headers",
        "dynamic symbols (.dynsym)",
        "symbol lookup (.gnu.hash)",
    ):
        assert found["overhead", what] > 0


def test_shared_rows_name_their_users(x86: Library) -> None:
    users = {s.owner.name: s.owner.operators for s in x86.attribution().shares}
    assert users["dot (math.h)"] == ("gemm", "softmax")
    assert users["shared_exp (math.cc)"] == ("softmax",)


def test_folded_functions_count_once(library: Library) -> None:
    share = next(s for s in library.attribution().shares if "copy" in s.owner.name)
    assert share.owner.kind == "shared" and share.owner.operators == ("copy", "move")
    assert len(share.pieces) == 1 and len(share.pieces[0].names) == 2
    sizes = [s.size for s in library.binary.symbols if "copy" in s.name or "move" in s.name]
    assert len(sizes) == 2 and share.bytes == sizes[0]


def test_functions_nobody_owns_are_the_librarys(x86: Library) -> None:
    sources = {n: p for n, p in x86.owners.sources.items() if n not in ("zero", "mb_last_error")}
    found = rows(attribute(x86.binary, owners.Owners(sources), KERNELS))
    assert ("library", "zero") in found
    assert ("runtime", "functions of unknown source") in found


def test_the_archive_tells_the_same_owners(library: Library) -> None:
    assert owners.from_archive("lib.a", library.archive, library.sources) == library.owners


def test_a_file_without_section_headers_still_adds_up(library: Library) -> None:
    binary = elf.read_binary("lib.so", library.target, library.headerless, library.unstripped)
    found = rows(attribute(binary, library.owners, KERNELS))
    assert sum(found.values()) == len(library.headerless) < len(library.stripped)
    assert ("overhead", "section headers") not in found
    assert found["operator", "gemm"] == rows(library.attribution())["operator", "gemm"]


def test_mangled_owners_work(x86: Library) -> None:
    mangled = {"_ZN8minbuild4gemmIfEENS_6StatusERKNS_4CallE": "kernels/gemm.cc"}
    found = rows(attribute(x86.binary, owners.Owners(mangled), ()))
    assert found["runtime", "gemm"] > 0  # no selected kernel has this stem
    assert found["runtime", "functions of unknown source"] > 0
    found = rows(attribute(x86.binary, owners.Owners({}), KERNELS))
    assert found["operator", "gemm"] > 0  # a kernel is known by its name alone


def symbols_at(library: Library, *spans: tuple[str, int, int]) -> model.Binary:
    text = next(s for s in library.binary.sections if s.name == ".text")
    return replace(
        library.binary,
        symbols=tuple(model.Symbol(n, ".text", text.address + at, size) for n, at, size in spans),
    )


def test_overlapping_symbols_share_no_byte(x86: Library) -> None:
    """Nested and same-start symbols are listed with the one that has the bytes; later ones keep the rest."""
    spans = (("a", 16, 40), ("a2", 16, 8), ("nested", 20, 4), ("late", 50, 20), ("b", 400, 1 << 40))
    attribution = attribute(symbols_at(x86, *spans), owners.Owners({}), ())
    pieces = {p.names: p.bytes for s in attribution.shares for p in s.pieces if p.names}
    size = next(s.size for s in x86.binary.sections if s.name == ".text")
    expected = {("a", "a2", "nested"): 40, ("late",): 14}
    if size > 400:
        expected["b",] = size - 400
    assert pieces == expected
    assert attribution.total == len(x86.stripped)


def test_contradicting_sections_are_an_error(x86: Library) -> None:
    twice = (*x86.binary.sections, replace(x86.binary.sections[0], name=".again"))
    with pytest.raises(ToolchainFailed, match="libtrainer.so: .* inside"):
        attribute(replace(x86.binary, sections=twice), x86.owners, KERNELS)
    beyond = replace(x86.binary.sections[0], offset=len(x86.stripped) + 5)
    with pytest.raises(ToolchainFailed, match="libtrainer.so"):
        attribute(replace(x86.binary, sections=(*x86.binary.sections, beyond)), x86.owners, KERNELS)
