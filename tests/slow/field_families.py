"""Families of timm and types of transformers, exported by PyTorch, made into artifacts, planned and trained:
reports/baseline/field_families.md and field_families.json.

    python tests/slow/field_families.py --python PYTHON --work FOLDER [--retry] [NAME...]

As field_models.py does it, with one exporter, two steps, the library of all kernels, and one process per model with a
limit of time. Models that are in the table are passed over, unless they are named; with --retry those that failed
are tried again. What FOLDER holds is not exported again. PYTHON has torch, torchvision, timm, transformers, onnx and
onnxscript. Exit code 1 where a model fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from field_models import ROOT, tried
from field_table import Row, line, read_rows, write_table
from own_process import answer_of

from minbuild.training.onnx_backend import full_library

LIMIT = 300  # seconds for a model
CHUNK = 8  # models that one process exports: libraries of models take seconds to import
PLACE, STEM = ROOT / "reports" / "baseline", "field_families"
PREFACE = """\
Families of timm and types of transformers, each as its smallest model, narrowed where its options allow, with random
weights: exported by PyTorch, made into artifacts, planned and trained (`tests/slow/field_families.py`). Columns and
results are those of the models that are exported from PyTorch (`tests/slow/field_models.py`); here are two steps, no
library is built, and `double` is there where float32 does not agree. PyTorch's newer exporter makes the models, or the
older one where that fails; where both fail, the reason of the newer one is there.
"""


def main() -> int:
    options = _options()
    script = Path(__file__).with_name("family_export.py")
    listed = subprocess.run([options.python, script, "--list"], capture_output=True, text=True, check=True)
    known = {row.model: row for row in read_rows(PLACE, STEM)}
    passed = {n for n, row in known.items() if not (options.retry and row.failed)}
    names = options.names or [n for n in listed.stdout.split() if n not in passed]
    full_library()  # built once, before processes are made
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        wanted = [n for n in chunk if not (options.work / n / "meta.json").exists()]
        if wanted:
            subprocess.run([options.python, script, options.work, *wanted], check=True, stdout=sys.stderr)
        for row in _rows(options.work, chunk):
            print(line(row), file=sys.stderr, flush=True)
            write_table([row], PLACE, stem=STEM, preface=PREFACE)
    rows = read_rows(PLACE, STEM)
    failed = [row for row in rows if row.failed]
    print(f"{len(rows)} models, {len(failed)} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument(
        "--python", type=Path, required=True, help="Python with torch and libraries of models"
    )
    parser.add_argument("--work", type=Path, required=True, help="what is exported is kept here")
    parser.add_argument("--retry", action="store_true", help="try models again that failed")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _rows(work: Path, names: Iterable[str]) -> Iterable[Row]:
    """A row for each model, made in a process of its own."""
    for name in names:
        exporter, meta = exported(work / name)
        row, why = answer_of(tried, work / name, exporter, True, limit=LIMIT)
        yield row or Row(name, exporter, meta["opset"].get(exporter, 0), result=why)


def exported(folder: Path) -> tuple[str, dict[str, Any]]:
    """The exporter whose model is in `folder`, or that failed last, and what is known of it."""
    meta = json.loads((folder / "meta.json").read_text())
    exporter = next((e for e in ("dynamo", "legacy") if e not in meta["failed"]), "dynamo")
    meta["opset"].setdefault(exporter, 0)
    return exporter, meta


if __name__ == "__main__":
    sys.exit(main())
