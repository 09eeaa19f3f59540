"""The shared library of a package's sources for this machine, which is all that most tests load."""

from __future__ import annotations

from minbuild.toolchain import build_library, find_toolchain, host_target
from minbuild.toolchain.compile_library import Sources


def shared_library(sources: Sources) -> bytes:
    """The bytes of the library that `sources` make, without an archive: its objects would take as long again."""
    return build_library(sources, host_target(), find_toolchain(), archive=False).shared
