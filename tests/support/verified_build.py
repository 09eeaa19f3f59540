"""A model, its builds and their runs: shared by tests of verification."""

from __future__ import annotations

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.codegen.sources import emit_sources
from minbuild.formats.detect import read_binary
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.library_contents import LibraryContents
from minbuild.toolchain import (
    Target,
    build_library,
    find_toolchain,
    host_target,
)


def build(
    model: CompiledModel,
    old: str = "",
    new: str = "",
    path: str = "src/kernel_table.cc",
    target: Target | None = None,
    session: tuple[str, str] = ("", ""),
) -> BuiltLibrary:
    """The trimmed library, with `old` replaced in one source, and another text in session.cc."""
    plan = model.plan
    sources = dict(
        emit_sources(LibraryContents(plan.kernels, frozenset(plan.features), True), model.registry)
    )
    text = sources[path].decode()
    assert old in text
    sources[path] = text.replace(old, new).encode()
    text = sources["src/runtime/session.cc"].decode()
    assert session[0] in text
    sources["src/runtime/session.cc"] = text.replace(*session).encode()
    target = target or host_target()
    built = build_library(sources, target, find_toolchain())
    binary = read_binary("library", str(target), built.shared, built.unstripped)
    return BuiltLibrary(built, binary, plan.kernels, sources)
