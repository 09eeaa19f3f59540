"""The configuration file: lines of `domain;opsets;operators`, an operator's types as JSON behind its name.

ONNX Runtime's reader loses some of what such files say. This one keeps it: lines that name an operator again add
types to it, opsets that share a line share nothing else, types are kept for every operator, and `#` starts a comment
anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from minbuild.compat.ort_config.requirements import Requirements, Types, unite
from minbuild.errors import BadInput

ALLOWED = "!globally_allowed_types"
ALL = "!no_ops_specified_means_all_ops_are_required"
TYPE_NAMES = frozenset(
    (
        *("float", "double", "MLFloat16", "BFloat16", "bool", "std::string"),
        *("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"),
        *("Float8E4M3FN", "Float8E4M3FNUZ", "Float8E5M2", "Float8E5M2FNUZ"),
    )
)


def parse_config(text: str, path: str) -> Requirements:
    """Parse a configuration file into requirements. Raises BadInput with the line that cannot be read."""
    operators: dict[tuple[str, int, str], Types] = {}
    allowed: frozenset[str] | None = None
    keeps_all = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        where = f"{path}: line {number}"
        if line == ALL:
            keeps_all = True
        elif line.partition(";")[0] == ALLOWED:
            if allowed is not None:
                raise BadInput(f"{where}: {ALLOWED} stands here a second time. Put all types in one line.")
            allowed = _names(line.partition(";")[2].split(","), where)
        elif line:
            for key, types in _line(line, where):
                operators[key] = unite((operators[key], types)) if key in operators else types
    if allowed is not None and any(operators.values()):
        raise BadInput(f"{path}: {ALLOWED} and types of single operators exclude each other. Remove one.")
    return Requirements(operators, allowed, keeps_all and not operators)


def _line(line: str, where: str) -> Iterator[tuple[tuple[str, int, str], Types]]:
    parts = line.split(";", 2)
    if len(parts) != 3 or not all(part.strip() for part in parts):
        raise BadInput(f"{where}: '{line}' is not 'domain;opsets;operators', such as 'ai.onnx;13;Gemm,Relu'.")
    domain, opsets, rest = (part.strip() for part in parts)
    versions = [text.strip() for text in opsets.split(",")]
    if not all(text.isascii() and text.isdigit() for text in versions):
        raise BadInput(f"{where}: opsets '{opsets}' are not numbers with commas between. Write '12,13'.")
    for name, types in _operators(rest, where):
        for version in versions:
            yield (domain, int(version), name), types


def _operators(text: str, where: str) -> Iterator[tuple[str, Types]]:
    """`Add,Cast{"inputs": ...},Mul` as names with types."""
    decoder = json.JSONDecoder()
    while text:
        ends = [at for at in (text.find(","), text.find("{")) if at >= 0]
        end = min(ends, default=len(text))
        name, text = text[:end].strip(), text[end:]
        types = Types()
        if text.startswith("{"):
            try:
                value, end = decoder.raw_decode(text)
            except ValueError as error:
                raise BadInput(
                    f"{where}: the types of {name} are no valid JSON: {error}. Correct them."
                ) from error
            types, text = _types(value, f"{where}: {name}"), text[end:].strip()
        if not name or text and not text.startswith(","):
            raise BadInput(
                f"{where}: operators are not names with commas between, near '{name}{text}'. Correct it."
            )
        yield name, types
        text = text[1:].strip()


def _types(value: Any, where: str) -> Types:
    """The JSON behind an operator's name."""
    places: dict[tuple[str, int], frozenset[str]] = {}
    triples: set[tuple[str, ...]] = set()
    try:
        for kind, given in value.items():
            if kind == "custom":
                triples |= {tuple(names) for names in given}
            elif kind in ("inputs", "outputs"):
                places |= {(kind, int(index)): frozenset(names) for index, names in given.items()}
            else:
                raise ValueError(f"unknown key '{kind}'")
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(
            f'{where}: types are not {{"inputs": {{"0": ["float"]}}, "outputs": ...}}: {error}. Correct them.'
        ) from error
    types = Types(places, frozenset(triples))
    _names(types.names, where)
    return types


def _names(names: Any, where: str) -> frozenset[str]:
    found = frozenset(name.strip() for name in names if name.strip())
    unknown = sorted(found - TYPE_NAMES)
    if unknown:
        raise BadInput(
            f"{where}: no type is called '{unknown[0]}'. Choose from {', '.join(sorted(TYPE_NAMES))}."
        )
    return found


# --------------------------------------------------------------------------------------------------- writing


def render_config(required: Requirements, sources: Sequence[str]) -> str:
    """The file: `sources` in comments, then one line per domain and opset. An operator at several opsets has the types
    of all of them in each line, because ONNX Runtime keeps those of the last line only."""
    lines = ["# Generated from model/s:", *(f"# - {source}" for source in sorted(sources))]
    if required.everything:
        lines.append(ALL)
    if required.allowed is not None:
        lines.append(f"{ALLOWED};{','.join(sorted(required.allowed))}")
    for domain, version in sorted({(d, v) for d, v, _ in required.operators}):
        names = sorted(n for d, v, n in required.operators if (d, v) == (domain, version))
        written = (name + _json(required.types_of(domain, name)) for name in names)
        lines.append(f"{domain};{version};{','.join(written)}")
    return "\n".join(lines) + "\n"


def _json(types: Types) -> str:
    if not types:
        return ""
    if types.triples:
        return json.dumps({"custom": [list(triple) for triple in sorted(types.triples)]})
    value: dict[str, dict[str, list[str]]] = {}
    for (kind, index), names in sorted(types.places.items()):
        value.setdefault(kind, {})[str(index)] = sorted(names)
    return json.dumps(value)
