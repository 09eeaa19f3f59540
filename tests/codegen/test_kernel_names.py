"""Names of kernels' sources: a library with a compiled plan may include any of them in one unit."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
TYPE = re.compile(r"^(?:struct|class|enum) (\w+)\b(?!;)")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?= =|[,}])")


def names_of(path: Path) -> set[str]:
    """Types and constants that a file defines outside of all functions and types."""
    found: set[str] = set()
    for line in path.read_text("utf-8").splitlines():
        found |= set(TYPE.findall(line))
        if line.startswith(("constexpr ", "enum ")):
            found |= set(CONSTANT.findall(line))
    return found


def test_no_name_is_defined_by_two_files() -> None:
    files = defaultdict(list)
    for path in (*KERNELS.glob("ops/*/*.cc"), *KERNELS.glob("lib/**/*.h")):
        for name in names_of(path):
            files[name].append(path.name)
    assert len(files) > 300
    assert not {name: of for name, of in files.items() if len(of) > 1}
