"""Proves trainers that have their plan compiled in, and prints what they take beside those that read it.

    python tests/slow/prove_flavors.py [--target NAME]... [--profile smallest] [FOLDER]...

Each folder of artifacts (by default every set that tests know) is reduced in both flavors with `--require-proof`, for
this machine or for each `--target`; safety that costs bytes is off in both. A row is a target: bytes of the library
that are loaded, of the plan, and of the checkpoint beside its parameters. Ends with 1 where anything is not proven.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

from case_sets import folders  # noqa: E402

from minbuild.frontend.checkpoint import read_checkpoint  # noqa: E402

PLAIN = ("--rollback", "off", "--finite-checks", "off", "--checkpoint-checks", "off", "--no-analysis")


def reduced(
    folder: Path, flavor: str, targets: list[str], profile: str, out: Path
) -> dict[str, tuple[int, int]]:
    """Bytes of library and plan by target. Raises RuntimeError with what the command said."""
    chosen = [word for target in targets for word in ("--target", target)]
    command = [sys.executable, "-m", "minbuild", "reduce", str(folder), "--out", str(out), "--flavor", flavor]
    ran = subprocess.run(
        [*command, "--profile", profile, "--require-proof", *PLAIN, *chosen], capture_output=True, text=True
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip())
    report = json.loads((out / "report/report.json").read_text())
    plan = report["model"]["plan_bytes"]
    return {target["target"]: (target["trimmed"]["loaded"], plan) for target in report["targets"]}


def framing(folder: Path) -> int:
    """Bytes of a checkpoint beside its parameters."""
    data = (folder / "checkpoint").read_bytes()
    return len(data) - sum(parameter.data.nbytes for parameter in read_checkpoint(data).parameters)


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--profile", default="smallest")
    given = parser.parse_args()
    failed = 0
    print("| model | target | interpreted | plan | together | compiled | together |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    for folder in given.folders or folders():
        with tempfile.TemporaryDirectory() as work:
            try:
                both = [
                    reduced(folder, flavor, given.target, given.profile, Path(work) / flavor)
                    for flavor in ("interpreted", "compiled")
                ]
            except RuntimeError as error:
                print(f"| {folder.name} | {error} |", flush=True)
                failed = 1
                continue
        rest = framing(folder) if (folder / "checkpoint").is_file() else 0
        for target, (reads, plan) in both[0].items():
            has = both[1][target][0]
            print(
                f"| {folder.name} | {target} | {reads:,} | {plan:,} | {reads + plan + rest:,} | {has:,} | "
                f"{has + rest:,} |",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
