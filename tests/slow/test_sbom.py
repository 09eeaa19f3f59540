"""The bill of materials of packages against the published schema of CycloneDX. In an environment with
`pip install ".[test]" "cyclonedx-python-lib[json-validation]"`:

    pytest tests/slow/test_sbom.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import FREE, SMALL, call

from minbuild.codegen.sbom import SBOM

pytest.importorskip("cyclonedx")
from cyclonedx.schema import SchemaVersion  # noqa: E402
from cyclonedx.validation.json import JsonStrictValidator  # noqa: E402


@pytest.mark.parametrize("models", [(SMALL,), (SMALL, FREE)])
def test_the_bill_follows_its_schema(models: tuple[Path, ...], tmp_path: Path) -> None:
    out = tmp_path / "dist"
    said = call("reduce", *models, "--out", out, "--no-analysis")
    assert said.returncode == 0, said.stderr
    text = (out / SBOM).read_text()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"CycloneDX"', '"Other"')) is not None
