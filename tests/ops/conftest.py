"""Fixtures of tests of operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minbuild.ops.convolution import conv


@pytest.fixture(scope="module")
def packed_convolutions() -> Iterator[None]:
    """Layers that would take Winograd's minimal filtering are packed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "takes_winograd", lambda *_, **__: False)
        yield
