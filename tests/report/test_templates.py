"""Templates and assets: found in a checkout and in a wheel, rendered strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from minbuild import assets, templating
from minbuild.errors import BadInput


def test_assets_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    for kind in assets.KINDS:
        assert assets.root(kind).is_dir()
    package = tmp_path / "site-packages" / "minbuild"
    (package.parent / "templates").mkdir(parents=True)  # of another package
    package.mkdir()
    with pytest.raises(BadInput, match="has no templates"):
        assets.root("templates", package)
    (package / "_assets" / "templates").mkdir(parents=True)
    assert assets.root("templates", package) == package / "_assets" / "templates"
    checkout = tmp_path / "checkout"
    (checkout / "kernels").mkdir(parents=True)
    (checkout / "pyproject.toml").write_text("")
    assert assets.root("kernels", checkout / "minbuild") == checkout / "kernels"
    with pytest.raises(ValueError, match="no assets of kind 'fonts'"):
        assets.root("fonts")


def test_templates_are_strict() -> None:
    with pytest.raises(UndefinedError):
        templating.render("report/report.md.j2")
