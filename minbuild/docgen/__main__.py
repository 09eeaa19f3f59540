"""`python -m minbuild.docgen` rewrites docs/reference and the generated blocks of README.md and docs/guides in a
checkout; a test fails when one is out of date."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minbuild.cli.option_parsing import options_of
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import known_keys
from minbuild.docgen import option_tables
from minbuild.docgen.c_api import c_api_page
from minbuild.docgen.command_pages import commands_page
from minbuild.docgen.comparison import comparison_page, readme_table
from minbuild.docgen.error_codes import errors_page
from minbuild.docgen.guide_blocks import guide_blocks
from minbuild.docgen.markdown import HEAD
from minbuild.docgen.measurements import measurements_page
from minbuild.docgen.operators import node_tests, operators_page
from minbuild.docgen.ort_api import ort_api_page
from minbuild.docgen.python_api import python_api_page
from minbuild.docgen.report_fields import report_fields_page

FOLDER = "docs/reference"
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LINES_SHOWN = 12  # of the recorded output, in README.md


def documents(root: Path) -> Mapping[Path, str]:
    """Path -> text of every generated page, and of README.md and the guides that have generated blocks, of the
    checkout at `root`."""
    pages = {root / FOLDER / name: HEAD + page() for name, page in _pages(root).items()}
    blocks = {
        "output": lambda: _output(root),
        "comparison": lambda: readme_table(root),
        **guide_blocks(root),
    }
    for path in (root / "README.md", *sorted((root / "docs/guides").glob("*.md"))):
        text = path.read_text("utf-8")
        if _BLOCK.search(text):
            pages[path] = _BLOCK.sub(lambda m: m[1] + blocks[m[2]]() + m[3], text)
    return pages


def _output(root: Path) -> str:
    """The first lines of what the README's command prints."""
    lines = _baseline(root, "output.txt").split("\n")[:_LINES_SHOWN]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```\n"


def _pages(root: Path) -> Mapping[str, Callable[[], str]]:
    return {
        "commands.md": commands_page,
        "options.md": lambda: option_tables.document(
            known_keys(options_of(reduce)), _baseline(root, "profiles.md")
        ),
        "report-fields.md": lambda: report_fields_page(root),
        "errors.md": errors_page,
        "c-api.md": lambda: c_api_page(root),
        "python-api.md": lambda: python_api_page(root),
        "ort-api.md": lambda: ort_api_page(root, _measured(root, "parts")),
        "operators.md": lambda: operators_page(_measured(root, "operators")),
        "onnx-node-tests.md": lambda: node_tests(_measured(root, "onnx_nodes")),
        "comparison.md": lambda: comparison_page(root),
        "measurements.md": lambda: measurements_page(root),
    }


def _baseline(root: Path, name: str) -> str:
    return (root / "reports" / "baseline" / name).read_text("utf-8")


def _measured(root: Path, name: str) -> Mapping[str, Any]:
    return json.loads(_baseline(root, f"{name}.json"))  # type: ignore[no-any-return]


def main() -> None:
    """Rewrite the generated pages of the checkout that this module runs from."""
    for path, text in documents(Path(__file__).resolve().parents[2]).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        sys.stdout.write(f"{path.name} written\n")


if __name__ == "__main__":
    main()
