"""Private copies of the tree: what is mutated is never what somebody works on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from generate import Mutation

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name("worker.py")
COPIED = ("minbuild", "kernels", "templates", "schemas", "tests", "artifacts", "examples", "docs", "reports")
COPIED += ("pyproject.toml", "README.md", "CHANGELOG.md", "constraints.txt")


def copy_tree(folder: Path) -> None:
    """What tests need, of what git has or would add."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name.split("/")[0] in COPIED and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


class Copy:
    """A private copy of the tree with the processes that run tests in it."""

    def __init__(self, source: Path, folder: Path, cache: Path) -> None:
        self.source, self.folder, self.cache = source, folder, cache
        self.workers: dict[str, subprocess.Popen[str]] = {}
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)

    def run(self, kind: str, tests: list[str], limit: float, mutated: bool = False) -> dict[str, Any]:
        if kind not in self.workers:
            environment = os.environ | {
                "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'tests/support'}",
                "MINBUILD_CACHE": str(self.cache),
                "MINBUILD_CASES": os.environ.get("MINBUILD_CASES", str(ROOT.parent / "shared/cases")),
                "TMPDIR": str(self.folder / "tmp"),
            }
            (self.folder / "tmp").mkdir(exist_ok=True)
            self.cache.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, str(WORKER), str(self.folder), kind]
            self.workers[kind] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        worker = self.workers[kind]
        log = self.folder / "log"
        assert worker.stdin and worker.stdout
        worker.stdin.write(
            json.dumps({"tests": tests, "log": str(log), "limit": limit, "mutated": mutated}) + "\n"
        )
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        for left in (self.folder / "tmp").glob("pytest-*/*"):
            shutil.rmtree(left, ignore_errors=True)
        return {**answer, "log": log.read_text("utf-8", "replace")}

    def try_mutation(self, each: Mutation, tests: list[str], limit: float) -> dict[str, Any]:
        """Killed, survived, timeout or invalid, and by what."""
        path, original = self.folder / each.file, self.source / each.file
        path.write_bytes(each.apply(original.read_bytes()))
        try:
            done = self.run("py" if each.file.endswith(".py") else "cc", tests, limit, mutated=True)
        finally:
            path.write_bytes(original.read_bytes())
            shutil.copystat(original, path)
        status, by = judged(done)
        return {"status": status, "by": by, "seconds": done["seconds"], "cpu": done["cpu"]}

    def close(self) -> None:
        for worker in self.workers.values():
            assert worker.stdin
            worker.stdin.close()
            worker.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def judged(done: dict[str, Any]) -> tuple[str, str]:
    code, log = done["code"], done["log"]
    if code is None:
        return "timeout", "time limit"
    if code == 0:
        return "survived", ""
    if re.search(r"ToolchainFailed|AssertionError.*\.(cc|h|c):\d+:\d+: error:", log) and re.search(
        r": error:|undefined|rejected", log
    ):
        return "invalid", "does not compile"
    if code < 0:
        return "killed", f"signal {-code}"
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", log, re.M)
    return ("killed", failed[1].split("/")[-1]) if failed else ("broken", log[-300:])
