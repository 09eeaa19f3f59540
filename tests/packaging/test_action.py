"""The GitHub Action, the reusable workflow and the pre-commit hook: their scripts, run as they stand."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import environment_of
from places import GOLDEN, ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
MARKER = "<!-- minbuild sizes -->"


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of(tmp_path_factory.mktemp("environment"))


def acted(folder: Path, environment: dict[str, str], **inputs: str) -> tuple[int, str, str]:
    """Exit code, comment and outputs of the action's last step in `folder`."""
    action = loaded("action.yml")
    step = action["runs"]["steps"][-1]
    given = {name: str(each.get("default", "")) for name, each in action["inputs"].items()} | inputs
    values = {key: given[text.split(".")[-1].strip(" }")] for key, text in step["env"].items()}
    outputs = folder / "outputs"
    done = subprocess.run(
        ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]),
        cwd=folder, env=environment | values | {"GITHUB_OUTPUT": str(outputs)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    comment = folder / given["comment"]
    assert comment.exists() and outputs.exists(), done.stderr
    return done.returncode, comment.read_text("utf-8"), outputs.read_text("utf-8")


def test_the_action_builds_compares_and_comments(environment: dict[str, str], tmp_path: Path) -> None:
    dense = str(GOLDEN / "dense")
    code, comment, outputs = acted(tmp_path, environment, artifacts=dense, out="old dist")
    assert code == 0 and comment.startswith(MARKER) and "PROVEN on" in comment
    assert "report=old dist/report/report.json" in outputs.splitlines()

    baseline = "old dist/report/report.json"
    code, comment, _ = acted(tmp_path, environment, artifacts=dense, baseline=baseline)
    assert code == 0 and "Sizes are those of the baseline." in comment

    changes = {"baseline": baseline, "arguments": "--file-io off", "out": "new"}
    code, comment, _ = acted(tmp_path, environment, artifacts=dense, **changes)
    assert code == 0 and comment.startswith(MARKER) and "−" in comment.split("<details>")[0]


def test_over_budget_has_a_comment_and_its_exit_code(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "minbuild.toml").write_text('[budgets]\nflash = "1 KiB"\n')
    settings = "--settings minbuild.toml"
    code, comment, _ = acted(tmp_path, environment, artifacts=str(GOLDEN / "dense"), arguments=settings)
    assert code == 5 and "minbuild ended with code 5" in comment


def test_only_the_commenting_job_may_write_and_it_runs_nothing_of_the_request() -> None:
    workflow = loaded(".github/workflows/size.yml")
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {}
    assert jobs["build"]["permissions"] == {"contents": "read"}
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    used = [step.get("uses", "") for step in jobs["comment"]["steps"]]
    assert not [name for name in used if "checkout" in name]
    assert MARKER in jobs["comment"]["steps"][-1]["run"]


def test_no_input_becomes_part_of_a_script() -> None:
    files = ["action.yml", *(str(p.relative_to(ROOT)) for p in (ROOT / ".github/workflows").glob("*.yml"))]
    for name in files:
        found = loaded(name)
        jobs = found.get("jobs", {"action": found.get("runs", {})})
        for step in [step for job in jobs.values() for step in job.get("steps", [])]:
            assert "${{" not in step.get("run", ""), f"{name}: {step['run']}"


def test_the_hook_scans_the_folders_of_changed_models(environment: dict[str, str], tmp_path: Path) -> None:
    (hook,) = loaded(".pre-commit-hooks.yaml")
    command = [*shlex.split(hook["entry"]), str(GOLDEN / "dense" / "training_model.onnx")]
    good = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    (tmp_path / "training_model.onnx").write_bytes(b"damaged")
    bad = subprocess.run(
        [*command, str(tmp_path / "training_model.onnx")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert bad.returncode == 2 and str(tmp_path) in bad.stderr
