"""Runs the README's command and keeps what it shows: reports/baseline/output.txt and reports/samples/.

    python tests/slow/record_samples.py

The picture of the HTML report needs Chromium on the PATH; without it the old picture stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def printed(out: Path) -> str:
    """What the README's command prints on standard output when it is not a terminal, 100 columns wide."""
    program = (sys.executable, "-c", "from minbuild.cli.main import main; main()")
    done = subprocess.run(
        (*program, "reduce", "artifacts/", "--out", str(out)),
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace(str(out), "dist")


def picture(page: Path, target: Path) -> None:
    browser = next((b for b in BROWSERS if shutil.which(b)), None)
    if browser is None:
        sys.stdout.write("no Chromium: the picture stays as it is\n")
        return
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            (browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
            + (
                f"--user-data-dir={profile}",
                "--window-size=1180,1400",
                f"--screenshot={target}",
                page.as_uri(),
            ),
            check=True,
            capture_output=True,
        )


def main() -> None:
    samples = ROOT / "reports" / "samples"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "dist"
        (ROOT / "reports" / "baseline" / "output.txt").write_text(printed(out), "utf-8")
        for name in ("report.html", "report.md", "report.json"):
            shutil.copy(out / "report" / name, samples / name)
        picture(samples / "report.html", samples / "report.png")


if __name__ == "__main__":
    main()
