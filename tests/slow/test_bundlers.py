"""The npm package of LeNet in programs that webpack, Vite, Rollup, esbuild and Parcel bundle in production mode, as
users of each do: trained in Chromium, and in Node, with the losses of ONNX Runtime's own trajectory. Needs the
artifacts in MINBUILD_CASES, npm with its registry, and chromium; what is not there is skipped by name:

    MINBUILD_CASES=cases pytest tests/slow/test_bundlers.py
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from case_sets import SHARED
from devtools import Browser
from programs import node_with_relaxed_simd, run, serve, tool

from minbuild.codegen.bindings import binding_files
from minbuild.codegen.library_builder import build_checked
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, parse_target

CASE = SHARED / "lenet"
MODULES = ("wasm32", "wasm32-relaxed-simd", "wasm32-threads", "wasm32-threads-relaxed-simd")
KINDS = {"one": MODULES[:1], "two": MODULES[:2], "one-threads": MODULES[2:3], "two-threads": MODULES[2:]}
PACKAGES = {
    "webpack": ("webpack@5", "webpack-cli@7"),
    "vite": ("vite@8",),
    "vite 7": ("vite@7",),
    "rollup": ("rollup@4", "@rollup/plugin-node-resolve@16", "@web/rollup-plugin-import-meta-assets@2"),
    "esbuild": ("esbuild@0.28",),
    "parcel": ("parcel@2",),
}
THREADS = 3
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
TRAIN = """
import { Tensor, TrainingSession } from "minbuild-trainer";
import * as ort from "minbuild-trainer/training";

// Losses over both interfaces of the package. `files` are those of the package, where the bundle is not beside them.
export async function train(data, { batches, rate, steps, ...options }, { plan, ...files } = {}) {
  const feeds = (batch, Kind) => Object.fromEntries(batch.map(([name, ...given]) => [name, new Kind(...given)]));
  const checkpointState = `${data}/checkpoint`, losses = [], again = [];
  const session = await TrainingSession.create(
    { trainModel: plan ?? `${data}/trainer.plan`, checkpointState, ...options, ...files });
  session.learningRate = rate;
  for (let step = 0; step < steps; ++step) {
    const outputs = session.runTrainStep(feeds(batches[step % batches.length], Tensor));
    losses.push(outputs[session.trainingOutputNames[0]].data[0]);
    session.runOptimizerStep();
    session.lazyResetGrad();
  }
  session.release();
  ort.env.wasm.numThreads = options.threads;
  ort.env.wasm.simd = options.simd;
  const named = { trainModel: "training_model.onnx", optimizerModel: "optimizer_model.onnx", checkpointState };
  const other = await ort.TrainingSession.create(named, { plan, ...files });
  other.session.learningRate = rate;
  for (let step = 0; step < steps; ++step) {
    const outputs = await other.runTrainStep(feeds(batches[step % batches.length], ort.Tensor));
    again.push(outputs[other.trainingOutputNames[0]].data[0]);
    await other.runOptimizerStep();
    await other.lazyResetGrad();
  }
  await other.release();
  return { losses, again, simd: session.simd ?? null };
}
"""
COUNTED = """
import { train } from "./train.js";
%s
let workers = 0;
globalThis.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    ++workers;
  }
};

export async function trained(chosen) {
  try {
    const given = await (await fetch("/data/given.json")).json();
    return { ...(await train("/data", { ...given, ...chosen }%s)), workers };
  } catch (error) {
    return { failure: String(error.stack ?? error) };
  }
}
"""
IN_PAGE = """
import { trained } from "./counted.js";

globalThis.trained = trained(globalThis.chosen);
"""
IN_WORKER = """
import { trained } from "./counted.js";

onmessage = ({ data }) => trained(data).then(postMessage);
"""
WITH_WORKER = """
const trainer = new Worker(%s, { type: "module" });
trainer.postMessage(globalThis.chosen);
globalThis.trained = new Promise((resolve) => (trainer.onmessage = ({ data }) => resolve(data)));
"""
IN_NODE = """
import { readFileSync } from "node:fs";
import { train } from "./train.js";

let workers = 0;
process.on("worker", () => ++workers);
const [data, chosen] = process.argv.slice(2);
const given = { ...JSON.parse(readFileSync(`${data}/given.json`, "utf-8")), ...JSON.parse(chosen) };
train(data, given%s).then((found) => console.log(JSON.stringify({ ...found, workers, global: typeof Worker })));
"""
PAGE = """<!doctype html><title>bundle</title><link rel="icon" href="data:,">
<script>globalThis.chosen = JSON.parse(decodeURIComponent(location.hash.slice(1) || "{}"));</script>
<script%s src="%s"></script>
"""
MODULE = " type=module"
ROLLUP = """
import { nodeResolve } from "@rollup/plugin-node-resolve";
import { importMetaAssets } from "@web/rollup-plugin-import-meta-assets";

export default {
  input: %s,
  output: { dir: "dist", format: "es" },
  plugins: [nodeResolve({ browser: true }), importMetaAssets()],
};
"""


Project = Callable[[str, str, Mapping[str, str]], Path]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for each kind, and `data` with what their programs read."""
    if not CASE.is_dir():
        pytest.skip("MINBUILD_CASES has no artifacts of lenet")
    folder = tmp_path_factory.mktemp("packages")
    model = compile_model(CASE, {}, {}, (), lambda line: None, options=PlanOptions(threads=str(THREADS)))
    contents = contents_of([model])
    built = {
        name: build_checked(contents, model.registry, parse_target(name), find_toolchain()).built.shared
        for name in MODULES
    }
    for kind, names in KINDS.items():
        modules = [*(built[name] for name in names), None]
        files = binding_files(
            *(("js",), contents.optional, {}, modules[0]), relaxed=modules[1], plans=[model.plan_bytes]
        )
        for name, data in files.items():
            path = folder / kind / Path(name).relative_to("bindings/js")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    known, meta = np.load(CASE / "reference.npz"), json.loads((CASE / "meta.json").read_text())
    inputs = {name: known[f"in/{name}"] for name in meta["input_names"]}
    batches = [
        [[name, data[i].dtype.name, data[i].ravel().tolist(), data[i].shape] for name, data in inputs.items()]
        for i in range(meta["n_batches"])
    ]
    given = {"batches": batches, "rate": meta["lr"], "steps": len(known["loss"])}
    (folder / "data").mkdir()
    (folder / "data/given.json").write_text(json.dumps(given))
    (folder / "data/trainer.plan").write_bytes(model.plan_bytes)
    shutil.copy(CASE / "checkpoint", folder / "data")
    return folder


@pytest.fixture(scope="module")
def project(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """project(bundler, kind, sources): a folder with these texts by stem and train.js in `src`, and with that package,
    below one with the bundler."""
    folder = tmp_path_factory.mktemp("bundlers")

    def npm(*names: object, cwd: Path) -> None:
        cwd.mkdir(parents=True)
        (cwd / "package.json").write_text('{"private": true}')
        install = (tool("npm"), "install", "--no-audit", "--no-fund", "--install-links", *map(str, names))
        done = subprocess.run(install, cwd=cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(cwd)
            pytest.skip(f"npm does not install {names}: {done.stderr[-500:]}")

    def make(bundler: str, kind: str, sources: Mapping[str, str]) -> Path:
        home = folder / bundler
        if not home.is_dir():
            npm(*PACKAGES[bundler], cwd=home)
        made = home / f"project{len(list(home.glob('project*')))}"
        npm(packages / kind, cwd=made)
        (made / "src").mkdir()
        (made / "src/package.json").write_text('{"type": "module"}')  # of the program, not of bundles
        for stem, text in {"train": TRAIN, **sources}.items():
            (made / f"src/{stem}.js").write_text(text)
        return made

    return make


def call(name: str, *arguments: object, cwd: Path) -> None:
    """A command of the bundler that is installed above the project `cwd`."""
    run(cwd.parent / "node_modules/.bin" / name, *arguments, cwd=cwd)


def entries(folder: Path) -> list[str]:
    """The programs of a page and of its worker, for bundlers that are given both."""
    return [name for name in ("src/index.js", "src/trainer.js") if (folder / name).is_file()]


def webpack(folder: Path) -> None:
    call("webpack", "--mode", "production", cwd=folder)
    (folder / "dist/index.html").write_text(PAGE % (" defer", "main.js"))


def vite(folder: Path) -> None:
    (folder / "index.html").write_text(PAGE % (MODULE, "/src/index.js"))
    call("vite", "build", cwd=folder)


def rollup(folder: Path) -> None:
    (folder / "rollup.config.mjs").write_text(ROLLUP % json.dumps(entries(folder)))
    call("rollup", "-c", cwd=folder)
    (folder / "dist/index.html").write_text(PAGE % (MODULE, "index.js"))


def esbuild(folder: Path) -> None:
    call("esbuild", *entries(folder), "--bundle", "--minify", "--format=esm", "--outdir=dist", cwd=folder)
    copy_files(folder)
    (folder / "dist/index.html").write_text(PAGE % (MODULE, "index.js"))


def esbuild_scripts(folder: Path) -> None:
    """As it bundles without a format, for a script: those have no address that files could be beside."""
    loaders = ("--loader:.wasm=binary", "--loader:.plan=binary")
    call("esbuild", "src/index.js", "--bundle", "--minify", *loaders, "--outdir=dist", cwd=folder)
    shutil.copy(folder / "node_modules/minbuild-trainer/worker.js", folder / "dist")
    (folder / "dist/index.html").write_text(PAGE % (" defer", "index.js"))


def parcel(folder: Path) -> None:
    (folder / "index.html").write_text(PAGE % (MODULE, "src/index.js"))
    call("parcel", "build", "index.html", cwd=folder)


def copy_files(folder: Path) -> None:
    """The files that the package's scripts load, beside a bundle."""
    package = folder / "node_modules/minbuild-trainer"
    for path in (*package.glob("*.wasm"), package / "worker.js", package / "trainer.plan"):
        shutil.copy(path, folder / "dist")


BUNDLERS = {each.__name__: each for each in (webpack, vite, rollup, esbuild, parcel)}


def choices(kind: str) -> list[dict[str, Any]]:
    """Options of sessions to try with a kind of package."""
    threads = {"threads": THREADS} if kind.endswith("threads") else {}
    return [threads | simd for simd in ({}, {"simd": "fixed"})[: len(KINDS[kind])]]


def check(found: dict[str, Any], chosen: dict[str, Any], kind: str) -> None:
    assert "failure" not in found, found["failure"]
    expected = np.load(CASE / "reference.npz")["loss"]
    for losses in (found["losses"], found["again"]):
        np.testing.assert_allclose(losses, expected, rtol=2e-6)
    assert found["workers"] == (2 * (THREADS - 1) if kind.endswith("threads") else 0)
    assert found["simd"] == (chosen.get("simd", "relaxed") if kind.startswith("two") else None)


def train_in_page(address: str, kind: str, folder: Path) -> None:
    """Train in Chromium with each of the kind's choices."""
    with Browser(folder) as browser:
        for number, chosen in enumerate(choices(kind)):
            browser.open(f"{address}?{number}#{quote(json.dumps(chosen))}")
            browser.wait_for("typeof trained", "object")
            check(browser.run("trained"), chosen, kind)


def train_bundle(folder: Path, packages: Path, kind: str, browser: Path) -> None:
    """Train in Chromium what was bundled in a project."""
    shutil.copytree(packages / "data", folder / "dist/data")
    with serve(folder / "dist", ISOLATED if kind.endswith("threads") else {}) as server:
        train_in_page(f"http://127.0.0.1:{server.server_port}/index.html", kind, browser)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bundler", BUNDLERS)
def test_in_a_page(project: Project, packages: Path, tmp_path: Path, bundler: str, kind: str) -> None:
    folder = project(bundler, kind, {"index": IN_PAGE, "counted": COUNTED % ("", "")})
    BUNDLERS[bundler](folder)
    train_bundle(folder, packages, kind, tmp_path)


@pytest.mark.parametrize("kind", ["one", "two-threads"])
@pytest.mark.parametrize("bundler", BUNDLERS)
def test_in_a_worker(project: Project, packages: Path, tmp_path: Path, bundler: str, kind: str) -> None:
    """A page that does not wait for its training, whose threads are workers of a worker."""
    known = bundler in ("webpack", "vite", "parcel")
    address = 'new URL("./trainer.js", import.meta.url)' if known else '"/trainer.js"'
    sources = {"index": WITH_WORKER % address, "trainer": IN_WORKER, "counted": COUNTED % ("", "")}
    folder = project(bundler, kind, sources)
    BUNDLERS[bundler](folder)
    train_bundle(folder, packages, kind, tmp_path)


@pytest.mark.parametrize("kind", ["one", "one-threads"])
def test_files_handed_over(project: Project, packages: Path, tmp_path: Path, kind: str) -> None:
    names = {"wasm": "minbuild.wasm", "plan": "trainer.plan"}
    imports = "".join(f'import {name} from "minbuild-trainer/{file}";\n' for name, file in names.items())
    counted = COUNTED % (imports, ', { wasm, plan, worker: "/worker.js" }')
    folder = project("esbuild", kind, {"index": IN_PAGE, "counted": counted})
    esbuild_scripts(folder)
    train_bundle(folder, packages, kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vite", ["vite", "vite 7"])
def test_server_of_vite(project: Project, packages: Path, tmp_path: Path, vite: str, kind: str) -> None:
    """The one for development, which bundles packages of node_modules only; before version 8 without their files."""
    folder = project(vite, kind, {"index": IN_PAGE, "counted": COUNTED % ("", "")})
    (folder / "index.html").write_text(PAGE % (MODULE, "/src/index.js"))
    shutil.copytree(packages / "data", folder / "public/data")
    excluded = {"optimizeDeps": {"exclude": ["minbuild-trainer"]}} if vite == "vite 7" else {}
    config = {"server": {"headers": ISOLATED if kind.endswith("threads") else {}}, **excluded}
    (folder / "vite.config.mjs").write_text(f"export default {json.dumps(config)};\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (folder.parent / "node_modules/.bin/vite", "--host", "127.0.0.1", "--port", str(port))
    server = subprocess.Popen((*command, "--strictPort"), cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout and any("Local:" in line for line in server.stdout)
        train_in_page(f"http://127.0.0.1:{port}/index.html", kind, tmp_path)
    finally:
        server.terminate()
        server.communicate()


def train_in_node(program: Path, packages: Path, kind: str) -> None:
    for chosen in choices(kind):
        command = (*node_with_relaxed_simd(), program, packages / "data", json.dumps(chosen))
        found = json.loads(run(*command, cwd=packages))
        assert found.pop("global") == run(tool("node"), "-p", "typeof Worker", cwd=packages).strip()
        check(found, chosen, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bundler", ["none", "esbuild", "webpack"])
def test_in_node(project: Project, packages: Path, bundler: str, kind: str) -> None:
    folder = project("esbuild" if bundler == "none" else bundler, kind, {"index": IN_NODE % ""})
    program = folder / "src/index.js"
    if bundler == "webpack":
        call("webpack", "--mode", "production", "--target", "node", cwd=folder)
        program = folder / "dist/main.js"
    if bundler == "esbuild":
        program = folder / "dist/main.mjs"
        options = ("--bundle", "--minify", "--platform=node", "--format=esm", f"--outfile={program}")
        call("esbuild", "src/index.js", *options, cwd=folder)
        copy_files(folder)
    if bundler != "none":
        shutil.rmtree(folder / "node_modules")
    train_in_node(program, packages, kind)


@pytest.mark.parametrize("kind", ["one", "one-threads"])
def test_files_handed_over_in_node(project: Project, packages: Path, kind: str) -> None:
    """A program in the format that esbuild takes for Node by itself, without addresses either."""
    names = {"wasm": "minbuild.wasm", "plan": "trainer.plan", "worker": "worker.js"}
    files = ", ".join(f"{name}: `${{__dirname}}/{file}`" for name, file in names.items())
    folder = project("esbuild", kind, {"index": IN_NODE % f", {{ {files} }}"})
    call("esbuild", "src/index.js", "--bundle", "--platform=node", "--outdir=dist", cwd=folder)
    copy_files(folder)
    shutil.rmtree(folder / "node_modules")
    train_in_node(folder / "dist/index.js", packages, kind)
