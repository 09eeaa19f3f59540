"""Paths in a package that do not depend on its models."""

from __future__ import annotations

import re
from functools import lru_cache

from minbuild import assets
from minbuild.toolchain import Target

_ABI = re.compile(r"^#define MB_ABI_VERSION (\d+)$", re.MULTILINE)


def folder_of(target: Target) -> str:
    """The folder of a target's libraries: its name, and its CPU where one was chosen."""
    return str(target).replace(":", "-")


def library_path(target: Target) -> str:
    """Where the shared library of a target is in the package."""
    return f"lib/{folder_of(target)}/{target.traits.shared_name}"


@lru_cache(1)
def abi_version() -> int:
    """The version of the interface in trainer.h, which is in manifests and in the names of installed libraries."""
    header = (assets.root("kernels") / "include" / "minbuild" / "trainer.h").read_text("utf-8")
    found = _ABI.search(header)
    assert found is not None, "trainer.h has no MB_ABI_VERSION"
    return int(found[1])
