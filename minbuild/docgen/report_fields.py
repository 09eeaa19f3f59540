"""docs/reference/report-fields.md: every field of report.json, from its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minbuild.docgen.markdown import cell, code, table

_HEAD = """# Fields of report.json

`minbuild reduce` writes `report/report.json`, and prints it with `--json`. `schemas/report.schema.json` describes it
as JSON Schema; this page is that schema as tables. Within one schema number fields are only added: a reader that
ignores what it does not know keeps working. `[]` marks the elements of a list, `*` the values of an object whose keys
are names.

"""


def report_fields_page(root: Path) -> str:
    """Markdown for the schema of the checkout at `root`."""
    schema = json.loads((root / "schemas/report.schema.json").read_text("utf-8"))
    definitions = schema["$defs"]
    parts = [_HEAD, f"{schema['description']}\n\n## The document\n\n", _section(schema)]
    for name in definitions:
        if "properties" in definitions[name]:
            text = definitions[name].get("description", "")
            parts.append(f"\n## {name}\n\n" + (f"{text}\n\n" if text else "") + _section(definitions[name]))
    return "".join(parts)


def _section(schema: Mapping[str, Any]) -> str:
    rows = [[code(path), cell(kind), cell(text)] for path, kind, text in _fields(schema, "")]
    return table(["field", "type", "meaning"], rows)


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        text = field.get("description", "") + ("" if name in required or not required else " Optional.")
        yield from _described(field, prefix + name, text)


def _described(field: Mapping[str, Any], path: str, text: str) -> Iterator[tuple[str, str, str]]:
    """The field itself, then what is inside of it."""
    yield path, _type(field), text.strip()
    if "properties" in field:
        yield from _fields(field, f"{path}.")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        inner = field.get(key)
        if isinstance(inner, Mapping) and "properties" in inner:
            if inner.get("description"):
                yield path + mark, _type(inner), inner["description"]
            yield from _fields(inner, f"{path}{mark}.")


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name})"
    if "const" in field:
        return f"always {json.dumps(field['const'])}"
    if "enum" in field:
        return "one of " + ", ".join(json.dumps(v) for v in field["enum"])
    kind = field.get("type", "any")
    kinds = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array" and isinstance(field.get("items"), Mapping):
        return f"array of {_type(field['items'])}"
    return kinds
