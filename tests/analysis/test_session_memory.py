"""The memory that a report names is the memory that `mb_arena_size` computes, to the byte."""

from __future__ import annotations

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import GOLDEN
from packed_model import packed_artifacts
from places import ROOT
from quiet_progress import Quiet
from shared_library import shared_library

from minbuild.analysis.measure import persistent_of
from minbuild.analysis.session_memory import arenas_of, session_memory, smaller_of
from minbuild.codegen.library_builder import BuiltLibrary, build_checked
from minbuild.codegen.sources import emit_sources
from minbuild.errors import ToolchainFailed
from minbuild.ir.size_report import SessionMemory
from minbuild.options.build_options import COMPILED, OFF, BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.pipeline import Request, reduce
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel, with_components, with_dense_plans
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import ROLLBACK, LibraryContents
from minbuild.planning.plan_encoding import encode_plan
from minbuild.toolchain import find_emulator, find_toolchain, host_target, parse_target, why_not_run
from minbuild.training.library import Library, arena_size
from minbuild.verify import script_runner

PLAIN, SMALLEST = BuildOptions(), BuildOptions(flavor=COMPILED, rollback=OFF, error_messages="codes")
_PROGRAM = b"""
#include "host.h"
#include "minbuild/trainer.h"
int main(void) {
  size_t size, bytes = 0;
  const unsigned char* plan = host_read("plan", &size);
  if (mb_arena_size(size ? plan : NULL, size, NULL, 0, &bytes) != MB_OK) host_fail("mb_arena_size", "failed");
  host_write(&bytes, sizeof bytes);
  return host_finish() ? 0 : 3;
}
"""


@functools.cache
def free() -> CompiledModel:
    return compile_model(GOLDEN / "dense", {}, {})


@functools.cache
def threaded() -> CompiledModel:
    """Large products, with which regions start at whole lines of the cache, and threads with stacks."""
    with tempfile.TemporaryDirectory() as name:
        folder = packed_artifacts(Path(name))
        model = compile_model(folder, {}, {"batch": 4}, options=PlanOptions(threads="3"))
    assert model.threads == 3
    return model


def dense(form: int) -> CompiledModel:
    found = with_dense_plans([compile_model(GOLDEN / "residual", {}, {})], form)
    assert found is not None
    return found[0]


def wide() -> CompiledModel:
    return replace(free(), plan_bytes=encode_plan(free().plan, free().largest, wide=True))


MODELS: dict[str, tuple[Callable[[], CompiledModel], BuildOptions]] = {
    "plain": (free, PLAIN),
    "fixed": (lambda: compile_model(GOLDEN / "dense_fixed", {}, {}), PLAIN),
    "properties": (lambda: with_components(free(), ("properties",)), PLAIN),
    "without rollback": (free, BuildOptions(rollback=OFF)),
    "dense": (lambda: dense(2), PLAIN),
    "dense with wide indices": (lambda: dense(1), PLAIN),
    "dense with shared names": (lambda: dense(4), PLAIN),
    "wide": (wide, PLAIN),
    "compiled": (free, BuildOptions(flavor=COMPILED)),
    "smallest": (lambda: compile_model(GOLDEN / "conv", {"batch": 3}, {}), SMALLEST),
    "threads": (threaded, PLAIN),
    "compiled with threads": (threaded, BuildOptions(flavor=COMPILED)),
}


def counted(model: CompiledModel, contents: LibraryContents, target: str = "") -> SessionMemory:
    sources = emit_sources(contents, model.registry)
    where = parse_target(target) if target else host_target()
    return session_memory([model], sources, where, find_toolchain())


@pytest.mark.parametrize("name", MODELS)
def test_a_session_takes_what_is_reported(name: str, tmp_path: Path) -> None:
    make, build_options = MODELS[name]
    model = make()
    contents = contents_of([model], build_options=build_options)
    path = tmp_path / "library"
    path.write_bytes(shared_library(emit_sources(contents, model.registry)))
    library, plan = Library(path), b"" if contents.compiled else model.plan_bytes
    own = counted(model, contents)
    kept = own.total + persistent_of(model.plan, ROLLBACK in contents.safety).total
    arenas = arenas_of(model, contents.compiled)
    assert arena_size(library, plan) == kept + max(arena.peak for arena in arenas)
    for smaller in smaller_of(model, contents.compiled):  # the session's own tables are the same for any size
        assert arena_size(library, plan, [smaller.size]) == kept + smaller.arena
    assert own.tables > 0
    on_linux = host_target().traits.os == "linux"
    assert own.stacks == (2 << 16 if "threads" in name and on_linux else 0)


@pytest.mark.parametrize("flavor", ["interpreted", COMPILED])
@pytest.mark.parametrize("target", ["arm-linux-musleabihf", "cortex-m4f", "wasm32"])
def test_other_machines_have_sessions_of_their_own(target: str, flavor: str) -> None:
    where = parse_target(target)
    if find_emulator(where) is None:
        pytest.skip(why_not_run(where))
    model = free()
    contents = contents_of([model], build_options=BuildOptions(flavor=flavor))
    library = build_checked(contents, model.registry, where, find_toolchain())
    kept = persistent_of(model.plan).total + max(arena.peak for arena in model.arenas)
    assert on_machine(model, library, target) == kept + counted(model, contents, target).total


def on_machine(model: CompiledModel, library: BuiltLibrary, target: str) -> int:
    """The result of mb_arena_size in a program for `target`."""
    where = parse_target(target)
    sources = script_runner._sources(where, {}) | {"runner.c": _PROGRAM}
    files = {"plan": library.plan_for(model.plan_bytes)}
    if where.traits.format == "wasm":
        folder = Path(script_runner.assets.root("templates")) / "verify"
        files["runner.mjs"] = (folder / "host_wasm.mjs").read_bytes()
    program = script_runner._program(sources, library, where, find_toolchain())
    return int.from_bytes(script_runner._reply(program, where, files), "little")


def test_reduce_reports_it(tmp_path: Path) -> None:
    reduce(Request((GOLDEN / "dense",), tmp_path / "dist", analysis=False), Quiet())
    report = json.loads((tmp_path / "dist/report/report.json").read_text("utf-8"))
    (target,) = report["targets"]
    library = Library(tmp_path / "dist" / target["files"]["Library"])
    plan = (tmp_path / "dist/model/trainer.plan").read_bytes()
    size = arena_size(library, plan, list(report["model"]["sizes"].values()))
    assert size == target["ram"] - target["static"]["total"] > target["session"]["total"] > 0


def test_the_arena_of_the_guide_is_large_enough() -> None:
    """The figures of its example are those of its command, and its array holds a session."""
    text = (ROOT / "docs/guides/targets.md").read_text("utf-8")
    command = "minbuild reduce artifacts/ --out device/ --target cortex-m4f --dim batch=4 --file-io off"
    assert command in text
    (found,) = re.findall(r"arena\[(\d+)\].*One session in the report: ([\d,]+) bytes", text)
    build_options = BuildOptions(file_io=OFF)
    model = compile_model(ROOT / "artifacts", {"batch": 4}, {})
    own = counted(model, contents_of([model], build_options=build_options), "cortex-m4f")
    size = own.total + persistent_of(model.plan).total + max(arena.peak for arena in model.arenas)
    assert size == int(found[1].replace(",", "")) <= int(found[0]) < size + 8192


@pytest.mark.parametrize("way", ["--cxx", "--cmake-toolchain"])
def test_other_compilers_count_the_same(way: str, tmp_path: Path) -> None:
    program = "g++" if way == "--cxx" else "cmake"
    if shutil.which(program) is None or not host_target().traits.is_elf:
        pytest.skip(f"{program} is not installed")
    file = tmp_path / "flags.cmake"
    file.write_text('set(CMAKE_CXX_FLAGS_INIT "-flto")\n')
    toolchain = find_toolchain("g++") if way == "--cxx" else find_toolchain(cmake_toolchain=file)
    contents = contents_of([free()])
    found = session_memory([free()], emit_sources(contents, free().registry), host_target(), toolchain)
    assert found == counted(free(), contents)


def test_an_object_without_constants_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.analysis.session_memory.compile_source", lambda *given: b"BC\xc0\xde")
    with pytest.raises(ToolchainFailed, match="holds no readable constants"):
        counted(free(), contents_of([free()]))
