"""The identity of a package: the version of its interface, its licence, and its bill of materials."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from commands import SMALL, call
from places import ROOT

from minbuild.codegen.ownership import MANIFEST, inventory
from minbuild.codegen.package_layout import abi_version
from minbuild.codegen.sbom import SBOM
from minbuild.errors import BadInput
from minbuild.training.api import CheckpointState, Module


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package") / "dist"
    said = call(
        "reduce", SMALL, "--out", out, "--no-analysis", "--target", "x86_64-linux-gnu", "--target", "wasm32"
    )
    assert said.returncode == 0, said.stderr
    return out


def test_the_bill_names_every_library_and_artifact(package: Path) -> None:
    bill = json.loads((package / SBOM).read_text())
    manifest = json.loads((package / MANIFEST).read_text())
    hashes = {c["name"]: c["hashes"][0]["content"] for c in bill["components"]}
    libraries = [entry["library"] for entry in manifest["targets"].values()]
    assert len(libraries) == 2
    assert {name: hashes[name] for name in libraries} == {
        name: manifest["files"][name]["sha256"] for name in libraries
    }
    assert {name: hashes[name] for name in manifest["model"]} == manifest["model"]
    refs = {component["bom-ref"] for component in bill["components"]} | {"trainer"}
    assert {d["ref"] for d in bill["dependencies"]} <= refs
    assert set(bill["dependencies"][0]["dependsOn"]) == refs - {"trainer"}
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])


def test_the_licence_is_the_project_s(package: Path) -> None:
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not inventory(package).foreign


def test_a_library_of_another_interface_is_refused(package: Path, tmp_path: Path) -> None:
    manifest = json.loads((package / MANIFEST).read_text())
    assert manifest["abi"] == abi_version() == 1
    copy = tmp_path / "dist"
    shutil.copytree(package, copy)
    checkpoint = copy / "model" / "checkpoint"
    Module(copy, CheckpointState.load_checkpoint(checkpoint))
    (copy / MANIFEST).write_text(json.dumps({**manifest, "abi": 2}))
    with pytest.raises(BadInput, match="version 2 of the interface"):
        Module(copy, CheckpointState.load_checkpoint(checkpoint))
