"""A library for C libraries from 2.17 on imported lstat, which their shared library has had since 2.33 only."""

from __future__ import annotations

from case_sets import GOLDEN, trainer

from minbuild.codegen.sources import emit_sources
from minbuild.formats import detect as formats
from minbuild.ops import registry
from minbuild.toolchain import build_library, find_toolchain, parse_target

# Until then programs got them from a static part of their own.
YOUNG = {"stat", "lstat", "fstat", "fstatat", "mknod", "stat64", "lstat64", "fstat64", "fstatat64"}


def test_32_bit_arm_imports_nothing_that_old_c_libraries_lack() -> None:
    target = parse_target("arm-linux-gnueabihf")
    sources = emit_sources(trainer(GOLDEN / "dense_fixed").contents, registry())
    built = build_library(sources, target, find_toolchain(), archive=False)
    imports = formats.read_binary("library", str(target), built.shared, built.unstripped).imports
    assert {"rename", "syscall"} <= set(imports)  # it saves checkpoints
    assert not YOUNG & set(imports)
