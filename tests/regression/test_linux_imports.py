"""Libraries for 32-bit Arm and LoongArch called the C library for files: for C libraries from 2.17 on they imported
lstat, which its shared library has had since 2.33 only."""

from __future__ import annotations

import pytest
from case_sets import GOLDEN, trainer

from minbuild.codegen.sources import emit_sources
from minbuild.formats import detect as formats
from minbuild.ops import registry
from minbuild.toolchain import build_library, find_toolchain, known_targets, parse_target

LINUX = [name for name in known_targets() if "-linux-" in name]


@pytest.mark.parametrize("name", LINUX)
def test_no_library_for_linux_needs_anything(name: str) -> None:
    """They save checkpoints, by calls of the system."""
    target = parse_target(name)
    sources = emit_sources(trainer(GOLDEN / "dense_fixed").contents, registry())
    built = build_library(sources, target, find_toolchain(), archive=False)
    binary = formats.read_binary("library", str(target), built.shared, built.unstripped)
    assert not binary.imports and "mb_save_checkpoint" in binary.exports
    assert target.traits.libc.encode() + b"\0" not in built.shared
