"""A fleet of the golden sets built by one worker and by several, each time with an empty cache: how time falls.

    python tests/slow/measure_fleet.py [--workers 1 2] [--copies 1]

Writes reports/baseline/fleet.md. Ends with 1 if a package differs between the runs in a single byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fleet_file(folder: Path, copies: int) -> Path:
    """Builds of all golden sets, `copies` of each, which differ in the memory that they are planned for."""
    golden = ROOT / "tests" / "golden"
    builds = [
        f"[[build]]\nname = {json.dumps(f'{path.name}-{number}')}\nartifacts = {json.dumps(str(path))}\n"
        for path in sorted(golden.iterdir())
        if (path / "training_model.onnx").is_file()
        for number in range(copies)
    ]
    file = folder / "fleet.toml"
    file.write_text("no-analysis = true\n" + "".join(builds))
    return file


def contents(folder: Path) -> dict[str, bytes]:
    """The files of all packages."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/**/*")) if p.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--copies", type=int, default=1)
    asked = parser.parse_args()
    lines = [
        "| workers | builds | seconds | builds at a time | beside one worker |",
        "|---:|---:|---:|---:|---:|",
    ]
    first: dict[str, bytes] = {}
    alone = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = fleet_file(folder, asked.copies)
        for workers in asked.workers:
            out = folder / f"with{workers}"
            environment = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "MINBUILD_CACHE": str(folder / f"cache{workers}"),
            }
            command = (
                sys.executable,
                "-m",
                "minbuild",
                "fleet",
                file,
                "--out",
                out,
                "--workers",
                str(workers),
            )
            subprocess.run(tuple(map(str, command)), env=environment, check=True)
            report = json.loads((out / "fleet.json").read_text())
            alone = alone or report["elapsed"]
            lines.append(
                f"| {workers} | {len(report['builds'])} | {report['elapsed']:.0f} "
                f"| {report['work'] / report['elapsed']:.2f} | {report['elapsed'] / alone:.2f} |"
            )
            print(lines[-1], flush=True)
            first = first or contents(out)
            if contents(out) != first:
                print("packages differ", file=sys.stderr)
                return 1
    (ROOT / "reports" / "baseline" / "fleet.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
