"""Notebooks of the examples, cell by cell, each in a copy of its folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import doc_blocks
import pytest
from places import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*/*.ipynb"))
NEEDS = {
    "keyword-spotting": ("espeakng_loader",),
    "lora-transformer": ("sklearn",),
    "phone": ("sklearn",),
    "power-loss": ("sklearn",),
    "pytorch": ("torch", "onnxscript", "sklearn"),
}
SECONDS = 900  # of one cell


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.journeys
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    needed = ("nbclient", "ipykernel", *NEEDS.get(notebook.parent.name, ()))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import nbformat
    from nbclient import NotebookClient

    shutil.copytree(notebook.parent, tmp_path, dirs_exist_ok=True)
    client = NotebookClient(
        nbformat.read(notebook, as_version=4),
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env=doc_blocks.environment_of(tmp_path))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_a_notebook_has_no_results(notebook: Path) -> None:
    """Results differ from run to run; the README shows them."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
    assert not [c for c in cells if c["cell_type"] == "code" and (c["outputs"] or c["execution_count"])]
    assert _name(notebook).split("/")[1] in (notebook.parent / "README.md").read_text("utf-8")
