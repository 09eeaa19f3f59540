"""Runs ONNX's own node tests on the full build and records which are refused, and why.

python tests/slow/record_onnx_nodes.py            writes reports/baseline/onnx_nodes.json
python tests/slow/record_onnx_nodes.py PATTERN    runs those whose name matches and prints what became of them
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from onnx_nodes import RECORD, node_tests, outcome  # noqa: E402


def main(arguments: list[str]) -> None:
    pattern = arguments[0] if arguments else ""
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    passed: list[str] = []
    for name, test in sorted(node_tests().items()):
        if not re.search(pattern, name):
            continue
        try:
            why = outcome(test)
        except Exception as error:  # a crash is a wrong answer too
            wrong[name] = " ".join(str(error).split())
            continue
        if why:
            refused[name] = why
        else:
            passed.append(name)
    for why, count in Counter(refused.values()).most_common():
        examples = [n for n, w in refused.items() if w == why]
        print(f"{count:5} refused: {why}  ({', '.join(examples[:3])})")
    for name, problem in wrong.items():
        print(f"WRONG {name}: {problem[:200]}")
    print(f"{len(passed)} pass, {len(refused)} are refused, {len(wrong)} are wrong")
    if wrong:
        raise SystemExit(6)
    if not pattern:
        record = {"onnx": onnx.__version__, "passed": passed, "refused": refused}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
