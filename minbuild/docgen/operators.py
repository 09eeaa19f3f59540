"""docs/reference/operators.md and onnx-node-tests.md: the operators with versions, types, gradients and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minbuild.docgen.formulas import gradient_formula
from minbuild.docgen.markdown import row as _row
from minbuild.ops import Registry, registry
from minbuild.ops.core.definition import KernelFunction, Op

_OPERATORS = """# Operators

The last columns are the bytes of each operator's file in the full build, measured by
`tests/slow/measure_operators.py`: its own + those of helpers that it shares with other files. Operators of one file
share its bytes; the trimmed build contains only the kernels, element types and kernel features that a model uses.
float16 and bfloat16 are storage types; arithmetic is float32. Operators that ONNX defines as functions need no
kernel: lowering decomposes them. `minbuild scan` reports every unsupported node of a model in one run.

## By domain

"""
_GRADIENTS = """
## Gradients

The graph that each gradient rule emits, shown on one application of the operator: x are its inputs, y its outputs; d
before a name denotes its gradient. Broadcast shapes and some attributes add nodes. "After" names the operator that
training runs in the forward pass instead, which keeps the values that the gradient reads.

"""


def operators_page(measured: Mapping[str, Any]) -> str:
    """Markdown: names by domain, the table, the gradients. `measured` is reports/baseline/operators.json."""
    found = registry()
    return "".join(
        (
            _OPERATORS,
            operators_summary(found),
            "\n## Versions, types and bytes\n\n",
            operators_table(found, measured),
            _GRADIENTS,
            gradients_table(found),
        )
    )


def operators_table(found: Registry, measured: Mapping[str, Any]) -> str:
    """Markdown: every operator with its versions, element types, gradient, parts that are left out when unused, tests,
    and the bytes of its file in the full build as `measured`, by target: its own, and those of shared helpers."""
    targets = sorted(measured)
    head = ["operator", "since opset", "element types", "gradient", "can be left out", "cases", "file"]
    lines = [_row([*head, *targets]), "|---" * 5 + "|--:|---" + "|--:" * len(targets) + "|"]
    for op in sorted(found.ops.values(), key=lambda o: (o.domain, o.name)):
        stem = found.op_stems[op.key]
        functions = [f for n, f in found.functions.items() if found.stems[n] == stem]
        on_device = op.lower is not None and functions
        types = _types(functions) if on_device else "any"
        features = _features(functions) if on_device else _off_device(op)
        bytes_of = [_bytes(measured[t]["operators"].get(stem)) if on_device else "0" for t in targets]
        since = ", ".join(map(str, op.since))
        gradient = "yes" if op.gradient or op.decompose_for_grad else "-"
        lines.append(_row([op.title, since, types, gradient, features, _cases(op), stem, *bytes_of]))
    totals = [f"{measured[t]['file']:,}" for t in targets]
    lines.append(_row(["**full build**", *[""] * 6, *totals]))
    return "\n".join(lines) + "\n"


def gradients_table(found: Registry) -> str:
    """Markdown: what each gradient rule writes, one line each, then the operators whose gradient is that of the
    operators they are made of, and those that no gradient flows through."""
    ops = sorted(found.ops.values(), key=lambda o: (o.domain, o.name))
    formulas = {op.title: gradient_formula(op) for op in ops}
    lines = ["| operator | gradient |", "|---|---|"]
    lines += [_row([title, f"`{text}`"]) for title, text in formulas.items() if text]
    silent = [op for op in ops if op.gradient is not None and not formulas[op.title]]
    for title, titles in (
        ("No gradient flows through", [op.title for op in silent if op.cases is not None]),
        (
            "With rules of their own that take a model to show",
            [op.title for op in silent if op.cases is None],
        ),
        ("Differentiated as what they are made of", [op.title for op in ops if _is_made_of_others(op)]),
    ):
        lines += ["", f"{title}: {', '.join(titles) or 'none'}."]
    return "\n".join(lines) + "\n"


def _is_made_of_others(op: Op) -> bool:
    return op.gradient is None and (op.decompose is not None or op.decompose_for_grad is not None)


def _off_device(op: Op) -> str:
    return "made of other operators" if op.decompose else "no code on the device"


def _bytes(figures: Mapping[str, int] | None) -> str:
    return "-" if figures is None else f"{figures['own']:,} + {figures['shared']:,}"


def _types(functions: list[KernelFunction]) -> str:
    labels = {e.label: None for f in functions for offered in f.types.values() for e in offered}
    return ", ".join(labels) or "float"


def _features(functions: list[KernelFunction]) -> str:
    return ", ".join(sorted({name for f in functions for name in f.features})) or "-"


def _cases(op: Op) -> str:
    import numpy as np

    return str(len(list(op.cases(np.random.default_rng(0))))) if op.cases else "-"


def operators_summary(found: Registry) -> str:
    """Markdown: the names of all operators by domain."""
    by_domain: dict[str, list[str]] = {}
    for op in found.ops.values():
        by_domain.setdefault(op.domain or "ai.onnx", []).append(op.name)
    own = by_domain.pop("minbuild", [])
    lines = [
        f"**{domain}** ({len(names)}): " + ", ".join(sorted(names))
        for domain, names in sorted(by_domain.items())
    ]
    lines.append(f"and {len(own)} fused forms that the passes make of them.")
    return "\n\n".join(lines) + "\n"


def node_tests(record: Mapping[str, Any]) -> str:
    """Markdown: how many of ONNX's node tests pass, and why the others are refused."""
    by_reason: dict[str, list[str]] = {}
    for name, why in record["refused"].items():
        by_reason.setdefault(why, []).append(name)
    passed, refused = len(record["passed"]), len(record["refused"])
    lines = [
        "# ONNX's node tests",
        "",
        f"Of the {passed + refused:,} node tests of onnx {record['onnx']} whose inputs and outputs are tensors of",
        f"numbers or truth values, {passed:,} pass on the full build, within ONNX's own tolerances or 4 units in the",
        "last place of the largest result. Tests that expect the random numbers of one generator are left out. The",
        f"other {refused:,} are refused before anything runs, for these reasons (recorded by",
        "`tests/slow/record_onnx_nodes.py`, checked by `tests/ops/test_onnx_nodes.py`):",
        "",
        "| tests | reason | which |",
        "|--:|---|---|",
    ]
    for why, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(_row([str(len(names)), why, ", ".join(n.removeprefix("test_") for n in sorted(names))]))
    return "\n".join(lines) + "\n"
