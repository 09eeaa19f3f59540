"""What tests of reports share."""

from __future__ import annotations

import pytest
from sample_report import make_report, make_target

from minbuild.ir.size_report import SizeReport


@pytest.fixture(scope="module")
def report() -> SizeReport:
    """Two targets, the second larger than the first."""
    return make_report(make_target(), make_target("aarch64-linux-musl", growth=1000))
