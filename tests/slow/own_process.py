"""A call in a process of its own, with a limit of time: whatever becomes of it, the next one begins. For
field_families.py and field_invariants.py."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def answer_of(function: Callable[..., Any], *args: Any, limit: float) -> tuple[Any, str]:
    """The result of `function`, or None and why there is none. `limit` are seconds."""
    context = multiprocessing.get_context("fork")  # with what is loaded here
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(function, args, sender))
    process.start()
    sender.close()
    try:
        return (receiver.recv(), "") if receiver.poll(limit) else (None, f"not done in {limit} s")
    except EOFError:
        process.join()
        return None, f"crashed: ended by {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _send(function: Callable[..., Any], args: tuple[Any, ...], sender: Connection) -> None:
    sender.send(function(*args))
