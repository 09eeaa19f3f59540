"""Gradient rules as text, for documentation: what a rule writes for an application of its operator, as formulas.

`dx = ReluGrad(dy, y)`: x are the operator's inputs, y its outputs, d in front of a name is its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Node, TensorType
from minbuild.ops.core.definition import Op, OpContext, TestCase, UnsupportedUse
from minbuild.ops.core.graph_builder import GradientBuilder, named

LONGEST = 240  # characters of a formula; longer ones are summed up
_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
_SHOWN_ELEMENTS = 6  # of a constant or an attribute


def gradient_formula(op: Op) -> str:
    """The operator's gradient rule on the first of its cases that has most gradients. Empty where there is no rule, or
    no case that shows it."""
    if op.gradient is None or op.cases is None:
        return ""
    found = [r for case in op.cases(np.random.default_rng(0)) if (r := _written(op, case)) is not None]
    return max(found, key=lambda r: len(r.results)).text() if found else ""


@dataclass(frozen=True)
class _Rule:
    """The nodes and results of one gradient rule: nodes, the gradients among their results, and what training runs
    instead of the operator."""

    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    instead: str

    def text(self) -> str:
        formula = _Printer(self.nodes, self.results).formula()
        if len(formula) > LONGEST:
            kinds = ", ".join(sorted({n.op_type for n in self.nodes} - {"Constant", "Identity"}))
            formula = f"{', '.join(self.results)} = {len(self.nodes)} nodes of {kinds}"
        return formula + (f" after {self.instead}" if self.instead else "")


def _written(op: Op, case: TestCase) -> _Rule | None:
    """The rule applied to a case; None where it does not apply, or gives nothing."""
    inputs = tuple(None if x is None else _type(x) for x in case.inputs)
    requires_grad = [
        i for i, t in enumerate(inputs) if t is not None and t.element.is_real and i not in case.constant
    ]
    x = _names("x", ["" if t is None else "x" for t in inputs])
    y = _names("y", ["" if i in case.absent else "y" for i in range(case.outputs)])
    dy = [f"d{n}" if n and i in op.differentiable else "" for i, n in enumerate(y)]
    known = tuple(x if i in case.constant else None for i, x in enumerate(case.inputs))
    rule = GradientBuilder(
        OpContext(case.attributes, inputs, known, max(op.since)),
        x=x,
        y=y,
        dy=dy,
        requires_grad=requires_grad,
        prefix="rule",
    )
    assert op.gradient is not None
    try:
        results = rule.write(op.gradient)
    except UnsupportedUse:
        return None
    names = [f"d{x[i]}" if i in requires_grad and r else "" for i, r in enumerate(results)]
    if not any(names):
        return None
    saved = {name: f"y{i}" for i, name in rule.saved.items()}
    nodes = tuple(_with_inputs(n, saved) for n in named(rule, results, names))
    instead = rule.forward[1] if rule.forward and rule.forward[1] != op.name else ""
    return _Rule(_needed(nodes, names), tuple(n for n in names if n), instead)


def _type(array: np.ndarray) -> TensorType:
    element = ElementType.of(array.dtype)
    assert element is not None, "cases have types that kernels know"
    return TensorType(element, array.shape)


def _names(stem: str, given: Sequence[str]) -> tuple[str, ...]:
    """`x` alone, else `x0`, `x1`, ...; "" where absent."""
    return tuple((stem if len(given) == 1 else f"{stem}{i}") if g else "" for i, g in enumerate(given))


def _with_inputs(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(n, n) for n in node.inputs)
    return Node(
        node.op_type,
        node.domain,
        node.version,
        name=node.name,
        inputs=inputs,
        outputs=node.outputs,
        attributes=node.attributes,
    )


def _needed(nodes: Sequence[Node], results: Iterable[str]) -> tuple[Node, ...]:
    needed, kept = set(results) - {""}, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


@dataclass
class _Printer:
    """Formulas of nodes: what is read once stands where it is read, everything else gets a name."""

    nodes: Sequence[Node]
    results: Sequence[str]
    texts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def formula(self) -> str:
        uses = Counter(n for node in self.nodes for n in node.inputs)
        for node in self.nodes:
            made = [n for n in node.outputs if n]
            text = self.application(node)
            if len(made) == 1 and made[0] not in self.results and (uses[made[0]] == 1 or _is_short(node)):
                self.texts[made[0]] = text
                continue
            for name in made:
                self.texts[name] = name if name in self.results else f"t{next(self.numbers)}"
            shown = ", ".join(self.texts[n] if n else "_" for n in node.outputs)
            self.lines.append(f"{shown} = {_bare(text)}")
        return "; ".join(self.lines)

    def application(self, node: Node) -> str:
        read = [self.texts.get(n, n) for n in node.inputs]
        if node.op_type == "Constant":
            return _value(node.attributes.get("value"))
        if node.op_type == "Identity":
            return read[0]
        if node.op_type in _INFIX and len(read) == 2:
            return f"({read[0]} {_INFIX[node.op_type]} {read[1]})"
        if node.op_type == "Neg":
            return f"-{read[0]}"
        given = {n: _value(v) for n, v in sorted(node.attributes.items()) if v is not None}
        attributes = [f"{n}={text}" for n, text in given.items() if text != "[]"]
        return f"{node.op_type}({', '.join([*(_bare(r) or '_' for r in read), *attributes])})"


def _is_short(node: Node) -> bool:
    return node.op_type in ("Constant", "Identity", "Shape")


def _bare(text: str) -> str:
    """Without parentheses around the whole."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and i < len(text) - 1:
            return text
    return text[1:-1]


def _value(value: Any) -> str:
    """A constant or an attribute in short."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype == object or array.size > _SHOWN_ELEMENTS:
        return f"[{'x'.join(map(str, array.shape))}]" if array.dtype != object else str(value)
    if array.ndim:
        return f"[{', '.join(f'{v:.6g}' for v in array.ravel().tolist())}]"
    return f"{array.item():.6g}"
