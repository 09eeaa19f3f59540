"""The stack budget: how it is written, and the panel of a matrix product that it leaves."""

from __future__ import annotations

import pytest

from minbuild.options.build_options import build_option
from minbuild.planning.kernel_selection import panel_bytes


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(("target", "target"), ("4096", "4096"), (3072, "3072"), ("4 KiB", "4096"), ("1.5 kB", "1500")),
        *(("0", None), ("much", None), ("-1", None), (["1024", "2048"], None)),
    ],
)
def test_it_is_a_number_of_bytes(written: object, read: str | None) -> None:
    assert build_option("stack_budget").read(written) == read


@pytest.mark.parametrize(
    ("budget", "panel"),
    [("target", 0), ("64", 256), ("1024", 512), ("3072", 1024), ("4096", 2048), ("100000", 16384)],
)
def test_products_take_up_to_half(budget: str, panel: int) -> None:
    assert panel_bytes(budget) == panel
