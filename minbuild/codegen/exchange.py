"""Two folders exchange their names in one step, where the system can: at no moment is one of them missing."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100  # AT_FDCWD: relative paths start at the current folder
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
# The file system or the kernel has no such call: the network, old kernels, some layered file systems.
_UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, getattr(errno, "ENOTSUP", errno.EINVAL), errno.EXDEV))


def exchange(left: Path, right: Path) -> bool:
    """Exchange what two paths name; False, with nothing changed, where the system cannot. Raises OSError."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return False
    paths = os.fsencode(left), os.fsencode(right)
    if hasattr(library, "renameat2"):
        result = library.renameat2(_HERE, paths[0], _HERE, paths[1], ctypes.c_uint(_EXCHANGE))
    elif hasattr(library, "renamex_np"):
        result = library.renamex_np(*paths, ctypes.c_uint(_EXCHANGE))
    else:
        return False
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(left))
