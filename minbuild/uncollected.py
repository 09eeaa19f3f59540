"""Work on large graphs without Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A block, or as a decorator a function, in which the cyclic collector does not run: nouns refer to each other as
    trees, which reference counts free, and collections take a time that grows with all that is alive. What is alive at
    the end becomes old, as if collections had left it: the next one would look through all of it otherwise."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # nothing that others keep from collections
                gc.freeze()
                gc.unfreeze()
            gc.enable()
