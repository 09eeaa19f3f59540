"""Paths in a package that do not depend on its models."""

from __future__ import annotations

from minbuild.toolchain import Target


def folder_of(target: Target) -> str:
    """The folder of a target's libraries: its name, and its CPU where one was chosen."""
    return str(target).replace(":", "-")


def library_path(target: Target) -> str:
    """Where the shared library of a target is in the package."""
    return f"lib/{folder_of(target)}/{target.traits.shared_name}"
