"""The software bill of materials of a package, in CycloneDX 1.6: what was built, of what, by what.

It follows from the package alone, without a date: the same package has the same bill.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from minbuild import __version__
from minbuild.escape import for_json
from minbuild.ir.mapped import FileBytes, sha256_of

SBOM = "sbom.cdx.json"
_LICENSE = [{"license": {"id": "MIT"}}]
_NAMESPACE = uuid.UUID("6f1c2f0e-0d0c-5f0b-9a53-2b8c6f3b7d11")  # of serial numbers of bills


def sbom(manifest: Mapping[str, Any], files: Mapping[str, FileBytes]) -> bytes:
    """The bill of a package with this manifest (without digests) and these other files."""
    libraries = [
        _component(entry["library"], files[entry["library"]], target, entry)
        for target, entry in manifest["targets"].items()
    ]
    models = [_model(name, digest) for name, digest in _models(manifest)]
    tools = sorted({entry["toolchain"] for entry in manifest["targets"].values()})
    trainer = {
        "type": "library",
        "bom-ref": "trainer",
        "name": "minbuild-trainer",
        "version": __version__,
        "description": "Trainer of one model, or of several, generated and compiled by minbuild",
        "licenses": _LICENSE,
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [_tool(f"minbuild {__version__}"), *map(_tool, tools)]},
            "component": trainer,
        },
        "components": [*libraries, *models],
        # Nothing else is linked: the sources in the package are all there is.
        "dependencies": [
            {"ref": "trainer", "dependsOn": [component["bom-ref"] for component in (*libraries, *models)]},
            *({"ref": library["bom-ref"], "dependsOn": []} for library in libraries),
        ],
    }
    digest = hashlib.sha256(json.dumps(bill, sort_keys=True).encode()).hexdigest()
    numbered = {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}"}
    return (for_json(json.dumps(numbered, indent=1, ensure_ascii=False)) + "\n").encode()


def _component(path: str, data: FileBytes, target: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": path,
        "name": path,
        "version": __version__,
        "hashes": [{"alg": "SHA-256", "content": sha256_of(data)}],
        "licenses": _LICENSE,
        "properties": [
            {"name": "minbuild:target", "value": target},
            {"name": "minbuild:toolchain", "value": entry["toolchain"]},
            {"name": "minbuild:proof", "value": entry["proof"]},
        ],
    }


def _models(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The artifacts of every model, by name, with their SHA-256."""
    if "models" not in manifest:
        return list(manifest["model"].items())
    return [
        (f"{name}/{file}", digest)
        for name, model in manifest["models"].items()
        for file, digest in model["model"].items()
    ]


def _model(name: str, digest: str) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model/{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def _tool(text: str) -> dict[str, str]:
    name, _, number = text.rpartition(" ")
    return {"type": "application", "name": name or number, **({"version": number} if name else {})}
