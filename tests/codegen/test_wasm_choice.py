"""Packages with two WebAssembly modules, one of them with relaxed SIMD: the one that JavaScript loads, its losses
beside the C API's, and the files of the package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import FREE, call
from places import TESTS
from programs import node_with_relaxed_simd, run, tool

from minbuild.codegen.bindings import binding_files, wasm_modules
from minbuild.codegen.ownership import MANIFEST, inventory
from minbuild.codegen.sbom import SBOM
from minbuild.toolchain import host_target, parse_target
from minbuild.training.library import TRAIN, Library, Session

FIXED, RELAXED = "minbuild.wasm", "minbuild-relaxed-simd.wasm"
BATCH, STEPS = 8, 20
ONE_MODULE = (
    "README.md example/images.js example/index.html example/train.mjs header.js index.d.ts index.js minbuild.wasm "
    "models.js module.js package.json plan.js refusal.js threads.js training.d.ts training.js worker.js"
)
ENGINE = f"""
import {{ chooseModule }} from "./simd.js";
import {{ readFileSync }} from "node:fs";
const runs = (file) => WebAssembly.validate(readFileSync(file));
console.log(chooseModule().kind, runs("{FIXED}"), runs("{RELAXED}"));
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for this machine and for both kinds of modules, the one with relaxed SIMD first."""
    out = tmp_path_factory.mktemp("package") / "dist"
    targets = [
        word for name in (str(host_target()), "wasm32-relaxed-simd", "wasm32") for word in ("--target", name)
    ]
    said = call("reduce", FREE, "--out", out, "--no-analysis", *targets, "--bindings", "js")
    assert said.returncode == 0, said.stderr
    shutil.copy(TESTS / "codegen/bindings/simd.mjs", out / "bindings/js")
    (out / "bindings/js/engine.mjs").write_text(ENGINE)
    return out


def test_the_module_that_is_loaded_and_its_losses(dist: Path) -> None:
    text = run(*node_with_relaxed_simd(), "simd.mjs", BATCH, STEPS, cwd=dist / "bindings/js")
    expected = losses_of_the_c_api(dist)
    assert expected[-1] < expected[0]
    found = json.loads(text)
    assert found.keys() == {"fixed", "relaxed"}
    for losses in found.values():
        np.testing.assert_allclose(losses, expected, rtol=1e-5)


def losses_of_the_c_api(dist: Path) -> list[float]:
    """The losses of this machine's library on the batch of simd.mjs."""
    state = 1

    def bits() -> int:
        nonlocal state
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        return state >> 8

    library = Library(next((dist / "lib" / str(host_target())).glob("*minbuild.*[!a]")))
    model = dist / "model"
    session = Session(library, (model / "trainer.plan").read_bytes(), (model / "checkpoint").read_bytes())
    values = [bits() / 2**24 - 0.5 for _ in range(12 * BATCH)]
    inputs = np.array(values, np.float32).reshape(BATCH, 12)
    labels = np.array([bits() % 5 for _ in range(BATCH)], np.int64)
    losses = []
    for _ in range(STEPS):
        losses.append(float(session.run(TRAIN, [inputs, labels])[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


def test_the_choice_is_what_the_engine_can_run(dist: Path) -> None:
    """Without a stub: the relaxed module is taken by those engines that accept it, and by no others."""
    for command in {(tool("node"),), node_with_relaxed_simd()}:
        kind, runs_fixed, runs_relaxed = run(*command, "engine.mjs", cwd=dist / "bindings/js").split()
        assert runs_fixed == "true"
        assert kind == ("relaxed" if runs_relaxed == "true" else "fixed")


def test_both_modules_are_in_the_package_and_its_lists(dist: Path) -> None:
    folder, manifest = dist / "bindings/js", json.loads((dist / MANIFEST).read_text())
    for name, target in ((FIXED, "wasm32"), (RELAXED, "wasm32-relaxed-simd")):
        library = f"lib/{target}/minbuild.wasm"
        digest = manifest["files"][f"bindings/js/{name}"]
        assert digest == manifest["files"][library] and manifest["targets"][target]["library"] == library
        assert library in {part["name"] for part in json.loads((dist / SBOM).read_text())["components"]}
        assert (folder / name).read_bytes() == (dist / library).read_bytes()
    assert (folder / FIXED).read_bytes() != (folder / RELAXED).read_bytes()
    package = json.loads((folder / "package.json").read_text())
    assert {FIXED, RELAXED, "simd.js"} <= set(package["files"])
    assert package["exports"][f"./{RELAXED}"] == f"./{RELAXED}"
    assert not [name for name in package["files"] if not (folder / name).is_file()]
    assert set(inventory(dist).foreign) == {"bindings/js/simd.mjs", "bindings/js/engine.mjs"}


def test_a_package_with_one_module_has_no_choice() -> None:
    one = binding_files(("js",), frozenset(), {}, b"module")
    assert set(one) == {f"bindings/js/{name}" for name in ONE_MODULE.split()}
    for name, data in one.items():
        assert b"simd" not in bytes(data).lower() and b"relaxed" not in bytes(data), name
    two = binding_files(("js",), frozenset(), {}, b"module", relaxed=b"other")
    assert set(two) - set(one) == {f"bindings/js/{RELAXED}", "bindings/js/simd.js"} and set(one) <= set(two)
    assert two[f"bindings/js/{FIXED}"] == b"module" and two[f"bindings/js/{RELAXED}"] == b"other"
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {
        f"bindings/js/{name}"
        for name in ("README.md", "index.d.ts", "index.js", "package.json", "training.d.ts", "training.js")
    }


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("", (None, None)),
        ("x86_64-linux-gnu", (None, None)),
        ("wasm32", ("wasm32", None)),
        ("wasm32-relaxed-simd", ("wasm32-relaxed-simd", None)),
        ("wasm32 wasm32-relaxed-simd", ("wasm32", "wasm32-relaxed-simd")),
        ("wasm32-relaxed-simd cortex-m4f wasm32", ("wasm32", "wasm32-relaxed-simd")),
        ("wasm32-threads-relaxed-simd wasm32-threads", ("wasm32-threads", "wasm32-threads-relaxed-simd")),
        ("wasm32 wasm32-threads wasm32-relaxed-simd", ("wasm32", "wasm32-relaxed-simd")),
        ("wasm32-threads wasm32 wasm32-relaxed-simd", ("wasm32-threads", None)),
        ("wasm32 wasm32:generic", ("wasm32", None)),
    ],
)
def test_modules_of_targets(targets: str, expected: tuple[str | None, str | None]) -> None:
    """The first target's module, and the one that differs from it in relaxed SIMD only."""
    found = wasm_modules({parse_target(name): name.encode() for name in targets.split()})
    assert tuple(data and data.decode() for data in found) == expected
