"""The cyclic collector rests within a block and then is as it was before."""

import gc

import pytest

from minbuild.uncollected import uncollected


def test_the_collector_is_as_before_after_errors_too() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), uncollected(), uncollected():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
