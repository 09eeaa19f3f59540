"""Generated documentation is up to date, and the README's commands are those that are run here and in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from minbuild.docgen.__main__ import documents

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", ["README.md", "reports/operators.md", "reports/api.md"])
def test_generated_documents_are_current(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == documents(ROOT)[ROOT / path], (
        "run `python -m minbuild.docgen.__main__`"
    )


def test_ci_runs_the_commands_of_the_readme() -> None:
    readme, ci = (ROOT / "README.md").read_text("utf-8"), (ROOT / ".ci/run").read_text("utf-8")
    assert "minbuild reduce artifacts/ --out dist/" in readme
    assert "pytest -n auto" in readme
    assert "pytest -n auto" in ci
