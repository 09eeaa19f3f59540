"""The one place that renders templates: strict about missing values, tidy about white space."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from minbuild import assets
from minbuild.escape import as_code, c_literal, in_comment


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(assets.root("templates"), encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=lambda name: name is not None and name.endswith((".html", ".html.j2")),
    )
    environment.filters.update(code=as_code, comment=in_comment, c_text=c_literal, json_text=json.dumps)
    return environment


def render(template_name: str, **values: Any) -> str:
    """The text of `templates/<template_name>` with `values` filled in. A value the template names and nobody
    gave is an error, never an empty string. Names ending in `.html.j2` are escaped for HTML; all others are
    taken as they are, but for the filters `code` of Markdown, `comment` and `c_text` of C, and `json_text`."""
    return _environment().get_template(template_name).render(**values)
