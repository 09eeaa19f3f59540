"""The cyclic collector rests within a block and then is as it was before."""

import gc
import weakref

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


class _Tree:
    """An object that weak references can follow."""


def test_what_is_alive_is_old_and_cycles_are_found() -> None:
    with uncollected():
        kept, lost = _Tree(), _Tree()
        lost.itself = lost  # type: ignore[attr-defined]
        found = weakref.ref(lost)
        del lost
    assert any(each is kept for each in gc.get_objects(2))
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert found() is None
