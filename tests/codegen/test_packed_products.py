"""Packed products, which all kernels of a library share."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from minbuild.codegen.sources import emit_sources
from minbuild.formats import ar, detect
from minbuild.formats.symbol_names import demangle
from minbuild.formats.symbol_origins import from_archive
from minbuild.ops import registry
from minbuild.planning.library_contents import LibraryContents, full_contents
from minbuild.toolchain import build_library, find_toolchain, host_target

PRODUCTS = "src/lib/gemm/packed_gemm.cc"
PACKED = ("contraction_packed", "rnn_packed")


def contents_of(*functions: str) -> LibraryContents:
    full = full_contents(registry())
    kernels = tuple(k for k in full.kernels if k.function in functions and k.types == ("float",))
    stems = {k.stem for k in kernels}
    return replace(
        full, kernels=kernels, features=frozenset(f for f in full.features if f.split(".")[0] in stems)
    )


@pytest.fixture(scope="module")
def archive() -> bytes:
    sources = emit_sources(contents_of(*PACKED), registry())
    return build_library(sources, host_target(), find_toolchain()).archive


def test_each_packed_product_is_compiled_once(archive: bytes) -> None:
    defining = {
        name
        for name, data in ar.members("library", archive).items()
        for symbol in detect.object_symbols(name, data)
        if symbol.defined and re.search(r"TileBody|multiply_packed|multiply_strided", demangle(symbol.name))
    }
    assert defining == {"packed_gemm.o"}


def test_products_belong_to_the_kernels_that_ask_for_them(archive: bytes) -> None:
    owners = from_archive("library", archive, emit_sources(contents_of(*PACKED), registry()))
    users = ("src/kernels/contraction.cc", "src/kernels/rnn.cc")
    tiles = [name for name in owners.users if "TileBody" in name]
    assert tiles and all(owners.users[name] == users for name in tiles)


def test_a_library_without_packed_products_has_no_file_for_them() -> None:
    assert PRODUCTS in emit_sources(contents_of(*PACKED), registry())
    plain = contents_of("contraction")
    assert PRODUCTS not in emit_sources(replace(plain, features=frozenset()), registry())
    doubles = replace(full_contents(registry()), features=frozenset())
    assert b"each(float) each(double)" in emit_sources(doubles, registry())["src/minbuild/config.h"]
