"""Interrupts of processes that tests start."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Makes a new process heed Ctrl-C (`preexec_fn` of subprocess.Popen): shells have what they start in the
    background ignore it, and so does all that this starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
