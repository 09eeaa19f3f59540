"""A build into the folder of another one says what takes more than before, old beside new, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from commands import SMALL, Command, command_fixture  # noqa: F401  the fixture `minbuild`

from minbuild.cli.earlier_build import earlier_record


def test_old_beside_new_where_it_grew(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    assert earlier_record(out) is None

    def reduced(messages: str) -> str:
        said = minbuild("reduce", SMALL, "--out", out, "--no-analysis", "--error-messages", messages)
        assert said.code == 0, said.err
        return said.out

    first, grown, same, shrunk = (reduced(each) for each in ("codes", "text", "text", "codes"))
    assert "The build options changed: error-messages codes → text" in grown
    old, new, change = re.search(r"Flash +([\d,]+) +([\d,]+) +\+([\d,]+)", grown).groups()  # type: ignore[union-attr]
    old, new, change = (int(number.replace(",", "")) for number in (old, new, change))
    assert new - old == change > 0 and "Runtime" in grown and "error text" in grown
    assert all("Change" not in said for said in (first, same, shrunk))
    (out / "report/report.json").write_text("{}")
    assert earlier_record(out) is None
