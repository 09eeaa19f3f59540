"""Modules whose memory workers share: the bits of the module without threads, in Node and in a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from devtools import Browser
from packed_model import packed_artifacts
from places import TESTS
from programs import node_with_relaxed_simd, run, serve, tool

from minbuild.codegen.bindings import binding_files
from minbuild.codegen.library_builder import build_checked
from minbuild.codegen.sources import emit_sources
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, parse_target

PROGRAMS = TESTS / "codegen" / "bindings"
BOTH = "both"
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
IN_NODE = """
import { compare } from "./threads.mjs";
import { pathToFileURL } from "node:url";

console.log((await compare(pathToFileURL(`${process.cwd()}/../../`).href, ...process.argv.slice(2))) || "passed");
"""
IN_PAGE = """<!doctype html><title>threads</title><script type="module">
import { compare } from "./threads.mjs";
window.compared = compare(new URL("../../", location.href).href).catch((error) => error.message);
</script>
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The npm package of a model with work for threads, and the modules without them; in BOTH the package with a
    second module, with relaxed SIMD."""
    folder = tmp_path_factory.mktemp("shared")
    model = compile_model(
        packed_artifacts(folder), {}, {}, (), lambda line: None, options=PlanOptions(threads="3")
    )
    contents = contents_of([model])
    modules = {
        name: build_checked(contents, model.registry, parse_target(name), find_toolchain()).built.shared
        for name in ("wasm32", "wasm32-threads", "wasm32-relaxed-simd", "wasm32-threads-relaxed-simd")
    }
    sources = emit_sources(contents, model.registry)
    for place, relaxed in ((folder, None), (folder / BOTH, modules["wasm32-threads-relaxed-simd"])):
        files = binding_files(
            *(("js",), contents.optional, sources, modules["wasm32-threads"]),
            relaxed=relaxed,
            plans=[model.plan_bytes],
        )
        files |= {"model/trainer.plan": model.plan_bytes, "model/checkpoint": model.checkpoint}
        files |= {"alone.wasm": modules["wasm32"], "alone-relaxed.wasm": modules["wasm32-relaxed-simd"]}
        files |= {"bindings/js/threads.mjs": (PROGRAMS / "threads.mjs").read_bytes()}
        files |= {"bindings/js/node.mjs": IN_NODE.encode(), "bindings/js/page.html": IN_PAGE.encode()}
        for name, data in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
    return folder


def test_threads_in_node(package: Path) -> None:
    assert run(tool("node"), "node.mjs", cwd=package / "bindings/js") == "passed\n"


@pytest.mark.parametrize(("alone", "simd"), [("alone.wasm", "fixed"), ("alone-relaxed.wasm", "relaxed")])
def test_threads_of_either_module(package: Path, alone: str, simd: str) -> None:
    folder = package / BOTH / "bindings/js"
    assert run(*node_with_relaxed_simd(), "node.mjs", alone, simd, cwd=folder) == "passed\n"


@pytest.mark.parametrize("name", ["script.cjs", "module.mjs"])
def test_the_script_of_threads_alone(package: Path, tmp_path: Path, name: str) -> None:
    """Bundlers copy it, and load it as a script or as a module."""
    folder = package / "bindings/js"
    script = shutil.copy(folder / "worker.js", tmp_path / name)
    assert run(tool("node"), "node.mjs", "alone.wasm", "fixed", script, cwd=folder) == "passed\n"


@pytest.mark.parametrize("isolated", [True, False])
def test_threads_in_a_page(package: Path, tmp_path: Path, isolated: bool) -> None:
    """A page that may not share memory is told what its server has to send."""
    server = serve(package, ISOLATED if isolated else {})
    try:
        with Browser(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{server.server_port}/bindings/js/page.html")
            found = browser.run("compared")
    finally:
        server.shutdown()
    assert found == "" if isolated else "Cross-Origin-Opener-Policy: same-origin" in found
