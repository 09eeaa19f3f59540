"""docs/reference/ort-api.md: ORT's training API, function by function, beside this project's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minbuild.compat import ort_api_map

_HEAD = """# ONNX Runtime's training API beside this one

The functions that an application written for ONNX Runtime's on-device training calls, and their counterparts here.
Functions of a component exist only in libraries built with it: `minbuild reduce --with properties,buffers,export`.
Names in the Python column are relative to `minbuild.training.api`; Python needs no components. Component sizes were
measured by `tests/slow/measure_features.py`.

"""


def ort_api_page(root: Path, measured: Mapping[str, Any]) -> str:
    """Markdown for the header of the checkout at `root`, with bytes of components as `measured` by target."""
    header = (root / "kernels/include/minbuild/trainer.h").read_text("utf-8")
    return _HEAD + ort_api_map.table(header, measured)
