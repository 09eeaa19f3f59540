"""Generated documentation is up to date, and the README's commands are those that are run here and in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from minbuild.docs import documents

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", ["README.md", "reports/operators.md"])
def test_generated_documents_are_current(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == documents(ROOT)[ROOT / path], "run `python -m minbuild.docs`"


def test_ci_runs_the_commands_of_the_readme() -> None:
    readme, ci = (ROOT / "README.md").read_text("utf-8"), (ROOT / ".ci/run").read_text("utf-8")
    assert "minbuild reduce artifacts/ --out dist/" in readme
    assert "pytest -n auto" in readme
    assert "pytest -n auto" in ci


def test_nothing_speaks_of_how_the_project_is_made() -> None:
    words = ("/work/", "shared/facts", "pypi.org", "registry.npmjs")
    for folder in ("minbuild", "kernels", "templates", "schemas", "reports", "."):
        for path in sorted((ROOT / folder).glob("*.md" if folder == "." else "**/*")):
            if path.is_file() and path.suffix in {".py", ".md", ".h", ".cc", ".fbs", ".j2", ".json"}:
                text = path.read_text("utf-8")
                assert not [w for w in words if w in text], path
