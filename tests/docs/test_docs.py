"""Documentation: generated pages are current, every command runs, links and navigation are whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import doc_blocks
import pytest
from places import ROOT

from minbuild.docgen.__main__ import documents

DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "reference" not in p.parts)
RUNNABLE = [p for p in PAGES if any(b.runs for b in doc_blocks.blocks(p))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_generated_pages_are_current() -> None:
    stale = [_name(path) for path, text in documents(ROOT).items() if path.read_text("utf-8") != text]
    assert not stale, "run `python -m minbuild.docgen`"


def test_generated_pages_are_deterministic() -> None:
    """Another process, with another order of hashes, writes the same bytes."""
    program = (
        "import hashlib; from pathlib import Path; from minbuild.docgen.__main__ import documents\n"
        f"d = documents(Path({str(ROOT)!r}))\n"
        "print(hashlib.sha256(''.join(d[p] for p in sorted(d)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            (sys.executable, "-c", program), cwd=ROOT, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


@pytest.mark.docs
@pytest.mark.parametrize("path", RUNNABLE, ids=_name)
def test_the_commands_of_a_page_run(path: Path, tmp_path: Path) -> None:
    absent = doc_blocks.run_page(path, tmp_path)
    if absent:
        pytest.skip(f"all other commands ran; not installed: {', '.join(dict.fromkeys(absent))}")


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_commands_shown_from_an_example_are_its_own(path: Path) -> None:
    for block in doc_blocks.blocks(path):
        if block.key == "as in":
            lines = (ROOT / "examples" / block.value / "README.md").read_text("utf-8").splitlines()
            assert [line for line in block.body.splitlines() if line not in lines] == []


def test_the_architecture_names_every_room() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    rooms = [p.parent.name for p in (ROOT / "minbuild").glob("*/__init__.py")]
    assert len(rooms) > 10 and not [room for room in rooms if f"| `minbuild/{room}/` |" not in text]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    assert listed == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


@pytest.mark.parametrize(
    "path", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=_name
)
def test_links_and_names_of_files_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", text):
        assert (path.parent / link).exists(), link
    for name in re.findall(
        r"`((?:minbuild|kernels|tests|schemas|templates|reports|examples)/[\w/.-]+)`", text
    ):
        assert (ROOT / name).exists() or _is_pattern(name), name


def _is_pattern(name: str) -> bool:
    return "..." in name or "<" in name


def test_the_site_builds(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install .[docs]")
    done = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "commands.html").is_file()
