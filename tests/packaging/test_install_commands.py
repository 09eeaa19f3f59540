"""The commands that install what is optional: nothing is released, so none of them names a release."""

from __future__ import annotations

import re
import sys

import pytest
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.unit

EXTRAS = {
    "torch": "minbuild/frontend/pytorch.py",
    "flower": "minbuild/federated/flower.py",
    "fleet": "minbuild/fleet/dask_scheduler.py",
    "asm": "minbuild/analysis/disassembly.py",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_error_names_the_packages_of_the_extra(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / EXTRAS[extra]).read_text("utf-8")
    packages = " ".join(f"'{name}'" for name in project["optional-dependencies"][extra])
    assert f"pip install {packages}" in text


def test_no_command_installs_a_release() -> None:
    places = [
        ROOT / "README.md",
        *(p for f in ("docs", "examples", "minbuild") for p in (ROOT / f).rglob("*")),
    ]
    texts = {p: p.read_text("utf-8") for p in places if p.suffix in (".md", ".py", ".ipynb")}
    found = [str(p.relative_to(ROOT)) for p, text in texts.items() if re.search(r"\bminbuild\[[a-z]", text)]
    assert len(texts) > 100 and not found
