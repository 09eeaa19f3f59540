"""Where things are in this checkout: shared by tests, so that a test can move."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
EXAMPLES = ROOT / "examples"
