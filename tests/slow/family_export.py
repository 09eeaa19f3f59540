"""Exports models of family_timm.py and family_transformers.py for field_families.py, each in a process of its
own. Runs in an environment with torch, torchvision, timm, transformers, onnx and onnxscript.

    python tests/slow/family_export.py --list
    python tests/slow/family_export.py FOLDER NAME...

Writes what field_export.py writes, for one exporter: the newer one, or the older one where that fails.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import field_export
import numpy as np
import torch
from family_timm import entries as vision
from family_transformers import entries as language

LIMIT = 240  # seconds for a model
EXPORTERS = ("dynamo", "legacy")


def main(folder: Path, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    import timm  # noqa: F401  (imported once, before processes are made)
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    every = {**vision(), **language()}
    unknown = [name for name in names if name not in every]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: in no list. `family_export.py --list` has the names.")
    for name in names:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        process = multiprocessing.get_context("fork").Process(target=_write, args=(every[name], place))
        process.start()
        process.join(LIMIT)
        if process.is_alive() or process.exitcode:
            process.kill()
            why = f"ended by {process.exitcode}" if process.exitcode else f"not exported in {LIMIT} s"
            _note(place, {"failed": dict.fromkeys(EXPORTERS, why), "opset": {}})
        print(f"{name}: {json.loads((place / 'meta.json').read_text())['failed']}", flush=True)


def _write(entry: field_export.Entry, place: Path) -> None:
    field_export.STEPS, field_export.SHAKEN = 2, 1
    meta: dict[str, Any] = {"failed": {}}
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (exporters print)
    for exporter in EXPORTERS:
        failed = meta["failed"]
        meta = field_export.made(entry, place, (exporter,))
        meta["failed"] |= failed
        if exporter not in meta["failed"]:
            with np.load(place / f"{exporter}.npz") as record:
                if not np.isfinite(record["loss64"]).all():
                    meta["failed"][exporter] = "its loss in PyTorch is no number"
        if exporter not in meta["failed"]:
            break
    _note(place, meta)


def _note(place: Path, meta: dict[str, Any]) -> None:
    (place / "meta.json").write_text(json.dumps(meta, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join([*vision(), *language()]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
