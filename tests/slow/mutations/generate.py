"""Single mutations of a file, made from its operators: comparisons, signs, constants, conditions, statements.

Python is read with `ast`; C++ with a tokenizer that knows comments, strings and preprocessor lines, and mutates what
stands between spaces, as operators do here and template brackets do not."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """One change of one file. `start` and `end` are offsets in its bytes, `new` goes between."""

    file: str
    start: int
    end: int
    new: str
    kind: str
    line: int
    was: str  # the lines that change, before and after
    becomes: str
    tests: tuple[str, ...] = ()  # of a written mutation: what has to notice it, before the tests of the file
    breaks: str = ""  # of a written mutation: what goes wrong

    @property
    def id(self) -> str:
        """Stays the same when lines move."""
        text = "\0".join((self.file, self.kind, self.was, self.becomes))
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def apply(self, data: bytes) -> bytes:
        return data[: self.start] + self.new.encode() + data[self.end :]


def mutation(file: str, data: bytes, start: int, end: int, new: str, kind: str, **more: object) -> Mutation:
    first = data.rfind(b"\n", 0, start) + 1
    last = data.find(b"\n", end)
    last = len(data) if last < 0 else last
    was = data[first:last].decode().strip()
    becomes = (data[first:start] + new.encode() + data[end:last]).decode().strip()
    return Mutation(file, start, end, new, kind, data[:start].count(b"\n") + 1, was, becomes, **more)  # type: ignore[arg-type]


def candidates(file: str, path: Path) -> list[Mutation]:
    """Everything that can be mutated in a file; each id once."""
    data = path.read_bytes()
    made = _of_python(file, data) if path.suffix == ".py" else _of_cpp(file, data)
    found = {m.id: m for m in made if m.apply(data) != data}
    return list(found.values())


def chosen(mutations: Iterable[Mutation], count: int, seed: str) -> list[Mutation]:
    """`count` of them: by the digest of id and seed, so that adding a line elsewhere changes no choice; kinds in turn,
    so that none is crowded out."""
    by_kind: dict[str, list[Mutation]] = {}
    for each in sorted(mutations, key=lambda m: hashlib.sha256(f"{seed} {m.id}".encode()).hexdigest()):
        by_kind.setdefault(each.kind, []).append(each)
    result: list[Mutation] = []
    queues = [
        by_kind[kind]
        for kind in sorted(by_kind, key=lambda k: hashlib.sha256(f"{seed} {k}".encode()).hexdigest())
    ]
    while len(result) < count and any(queues):
        for queue in queues:
            if queue and len(result) < count:
                result.append(queue.pop(0))
    return result


# ---------------------------------------------------------------------------------------------------- Python

_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}


def _of_python(file: str, data: bytes) -> Iterator[Mutation]:
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def at(node: ast.AST, end: bool = False) -> int:
        if end:
            return lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def between(left: ast.AST, right: ast.AST, word: str) -> tuple[int, int] | None:
        start = at(left, True)
        place = data.find(word.encode(), start, at(right))
        return None if place < 0 else (place, place + len(word))

    def change(start: int, end: int, new: str, kind: str) -> Mutation:
        return mutation(file, data, start, end, new, kind)

    for node in _computing(ast.parse(data)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            word, other = _COMPARE[type(node.ops[0])]
            place = between(node.left, node.comparators[0], word)
            if place:
                yield change(*place, other, "comparison")
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            place = between(node.values[0], node.values[1], word)
            if place:
                yield change(*place, other, "and, or")
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            word, other = _ARITHMETIC[type(node.op)]
            place = between(node.left, node.right, word)
            if place and not isinstance(node.right, ast.Constant | ast.JoinedStr):
                yield change(*place, other, "operator")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield change(at(node), at(node, True), f"({node.value} + 1)", "off by one")
        elif isinstance(node, ast.Constant) and type(node.value) is float and node.value:
            yield change(at(node), at(node, True), f"({node.value!r} * 1.01)", "1 % off")
        elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.NamedExpr):
            text = data[at(node.test) : at(node.test, True)].decode()
            if "\n" not in text and ":=" not in text:
                yield change(at(node.test), at(node.test, True), f"not ({text})", "negated condition")
        elif isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield change(at(node), at(node, True), "pass", "dropped statement")


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but for annotations, decorators, formatted text, messages of errors, what types are checked by."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            skipped.update(id(child) for child in ast.iter_child_nodes(node))
            continue
        for name in ("annotation", "returns", "decorator_list", "bases"):
            value = getattr(node, name, None)
            skipped.update(id(x) for x in (value if isinstance(value, list) else [value]))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(child) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise):
            skipped.add(id(node.exc))
        yield node


# ------------------------------------------------------------------------------------------------------- C++

_SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+", "+=": "-=", "-=": "+=", "&": "|", "|": "&"},
}
_KINDS = {"&&": "and, or", "||": "and, or"}
_HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M
)
_OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||\+=|-=|[<>+\-*&|])(?= )")
_STEP = re.compile(r" ([+-]) 1\b(?!\.)")
_INTEGER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")
_REAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:e-?\d+)?)(f?)(?![\w.])")
_CONDITION = re.compile(r"\bif \(((?:[^(){};\n]|\((?:[^(){};\n]|\([^(){};\n]*\))*\))+)\)")
_CALL = re.compile(r"^[ \t]+((?:[\w.>:\-\[\]*]+\([^;{}\n]*\)|[\w.>\-\[\]*]+ [+\-|&*]?= [^;{}\n]+));$", re.M)
_EXIT = re.compile(r"^[ \t]+if \([^{};\n]*\) ((?:return|continue|break)[^;{}\n]*;)$", re.M)


def _of_cpp(file: str, data: bytes) -> Iterator[Mutation]:
    text = data.decode()
    assert text.isascii(), f"{file}: offsets are those of ASCII"
    code = _HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    # Declarations of types and checks at compile time have no behaviour of their own.
    code = re.sub(
        r"^[^\n]*\b(?:static_assert|template|using|typedef|enum)\b[^\n]*",
        lambda m: " " * len(m[0]),
        code,
        flags=re.M,
    )

    def change(found: re.Match[str], group: int, new: str, kind: str) -> Mutation:
        return mutation(file, data, found.start(group), found.end(group), new, kind)

    for found in _OPERATOR.finditer(code):
        word = found[1]
        yield change(
            found, 1, _SWAPS[word], _KINDS.get(word, "comparison" if word in "<=>=!=" else "operator")
        )
    for found in _STEP.finditer(code):
        yield change(found, 0, "", "off by one")
    for found in _INTEGER.finditer(code):
        if int(found[1]) < 1 << 16:
            yield change(found, 1, str(int(found[1]) + 1), "off by one")
    for found in _REAL.finditer(code):
        value = float(found[1])
        if value:
            yield change(
                found, 1, f"{value * 1.01:.9g}" + ("" if "." in f"{value * 1.01:.9g}" else ".0"), "1 % off"
            )
    for found in _CONDITION.finditer(code):
        if not found[1].startswith("constexpr"):
            yield change(found, 1, f"!({text[found.start(1) : found.end(1)]})", "negated condition")
    for found in _CALL.finditer(code):
        yield change(found, 1, "", "dropped statement")
    for found in _EXIT.finditer(code):
        yield change(found, 1, ";", "dropped check")
