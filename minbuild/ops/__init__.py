"""Operators, one file each in a folder per family; `core/` holds what their definitions are written in.

Adding an operator is two new files with one stem, here and in `kernels/ops/<family>/`, and no edits.
"""

from minbuild.ops.core.registry import Registry, registry

__all__ = ["Registry", "registry"]
