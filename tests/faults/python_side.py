"""Every call of the cache and the package writer that reaches files fails in turn, or the process dies just before it.

Runs with tests/faults/preload.c before the C library; argument: an empty folder. Prints a line per experiment that went
wrong, the calls that each action makes, and last how many went wrong."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from minbuild.codegen import atomic_write
from minbuild.errors import BadInput
from minbuild.ir import Package
from minbuild.toolchain.cache import Cache

SHIM = ctypes.CDLL(None)
DIES, SHORT = 0, -1
CALLS = {name: ctypes.c_int.in_dll(SHIM, name) for name in ("armed", "calls", "fails", "error_number")}
FAILED = ctypes.c_char_p.in_dll(SHIM, "failed")
# Calls that only tidy up behind a success or a failure: without them, something may be left beside the file or package.
CLEANING = {
    "unlink",
    "unlinkat",
    "rmdir",
    "opendir",
    "fdopendir",
    "readdir64",
    "lstat64",
    "fstatat64",
    "stat64",
}
CLEANING |= {"openat64", "open64", "fstat64", "close", "rename"}
wrong = 0


def expect(good: bool, what: str) -> None:
    global wrong
    if not good:
        wrong += 1
        print(what)


def with_fault(action: Callable[[], object], call: int, error: int) -> BaseException | None:
    """Do it; call number `call` fails. What it raised."""
    CALLS["calls"].value, CALLS["fails"].value, CALLS["error_number"].value = 0, call, error
    FAILED.value = b""
    CALLS["armed"].value = 1
    try:
        action()
    except (OSError, BadInput) as raised:
        return raised
    finally:
        CALLS["armed"].value = 0
    return None


def killed(action: Callable[[], object], call: int) -> bool:
    """The same in a process of its own that dies before call number `call`. Whether it came to that."""
    child = os.fork()
    if child == 0:
        with_fault(action, call, DIES)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77


def tree(folder: Path) -> dict[str, bytes] | None:
    if not folder.is_dir():
        return None
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def experiments(
    name: str,
    prepare: Callable[[], None],
    action: Callable[[], object],
    state: Callable[[], object],
    beside: Callable[[], list[str]],
    documented: type[Exception],
) -> None:
    """`state` must be what it was before the action or after it, whole, whatever fails; nothing may lie `beside`."""
    prepare()
    action()  # whatever is imported late is there now
    prepare()
    old = state()
    assert with_fault(action, -1, errno.EIO) is None
    calls, new = CALLS["calls"].value, state()
    assert old != new and not beside() and calls > 3
    for errors in ((errno.EIO, errno.EIO), (errno.ENOSPC, errno.EACCES), (SHORT, SHORT)):
        for call, error in zip(range(calls), itertools.cycle(errors), strict=False):
            prepare()
            raised = with_fault(action, call, error)
            failed = (FAILED.value or b"").decode()
            what = f"{name}, call {call} ({failed}) fails with {error}"
            found = state()
            if raised is None:
                expect(found == new, f"{what}: success without the new state")
            else:
                expect(isinstance(raised, documented), f"{what}: {raised!r}")
                expect(found == old, f"{what}: failure without the old state, {raised!r}")
            expect(failed in CLEANING or not beside(), f"{what}: left beside it: {beside()}")
            if error == SHORT:
                expect(raised is None, f"{what}: {raised!r}")
            expect(
                with_fault(action, -1, errno.EIO) is None and state() == new,
                f"{what}: it does not work afterwards",
            )
    for call in range(calls + 1):
        prepare()
        died = killed(action, call)
        found = state()
        expect(
            found in (old, new), f"{name}, killed before call {call}: neither the old state nor the new one"
        )
        expect(died or call == calls, f"{name}: no call {call} in another process")
        action()
        expect(state() == new, f"{name}, killed before call {call}: it does not work afterwards")
    print(f"{name}: {calls} calls")


def package(**files: bytes) -> dict[str, bytes]:
    from hashlib import sha256

    from minbuild.codegen.ownership import sealed

    named = {name.replace("_", "/"): data for name, data in files.items()}
    digests = {name: {"sha256": sha256(data).hexdigest()} for name, data in named.items()}
    return {**named, "manifest.json": sealed({"tool": "minbuild", "files": digests})}


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def of_the_cache(folder: Path) -> None:
    old, new, other = b"old" * 9, b"new" * 50_000, b"other" * 9
    for name, entries in (
        ("replaced entry", {"aakey": old, "bbkey": other}),
        ("new entry", {"bbkey": other}),
    ):

        def prepare(entries: dict[str, bytes] = entries) -> None:
            empty(folder)
            for key, body in entries.items():
                Cache(folder).put(key, body)

        def state() -> object:
            return [Cache(folder).get(key) for key in ("aakey", "bbkey")]

        def beside() -> list[str]:
            return [str(p) for p in folder.rglob(".new-*")]

        experiments(name, prepare, partial(Cache(folder).put, "aakey", new), state, beside, OSError)


def of_the_eviction(folder: Path) -> None:
    """Entries may go at any time, but never in part."""
    bodies = {f"{n:02}key": bytes([n]) * 1000 for n in range(4)}

    def prepare() -> None:
        empty(folder)
        for key, body in bodies.items():
            Cache(folder).put(key, body)

    def action() -> None:
        Cache(folder, limit=2500).put("zzkey", b"z" * 1000)

    prepare()
    with_fault(action, -1, 0)
    for error in (errno.EIO, errno.EACCES):
        for call in range(CALLS["calls"].value):
            prepare()
            raised = with_fault(action, call, error)
            failed, cache = (FAILED.value or b"").decode(), Cache(folder)
            what = f"eviction, call {call} ({failed}) fails with {error}"
            expect(
                all(cache.get(key) in (None, body) for key, body in bodies.items()),
                f"{what}: a damaged entry",
            )
            expect(cache.get("zzkey") == (b"z" * 1000 if raised is None else None), f"{what}: {raised!r}")
            expect(raised is None or call < 6, f"{what}: the entry was written, and its eviction fails")


def of_the_package_writer(folder: Path, exchanges: bool) -> None:
    out = folder / "dist"
    if not exchanges:
        atomic_write.exchange = lambda left, right: False
    old, new = package(a_b=b"old", gone=b"only in the old one"), package(a_b=b"new" * 50_000, more_c_d=b"x")

    def prepare() -> None:
        empty(folder)
        atomic_write.write_package(out, Package(old))
        (out / "a/notes.txt").write_bytes(b"mine")

    def beside() -> list[str]:
        return [p.name for p in folder.iterdir() if p.name != "dist"]

    def state() -> object:
        found = tree(out)
        if found is None and not exchanges:  # between two renames: whole, under the hidden name
            (found,) = (tree(p / "old") for p in folder.iterdir())
            (folder / beside()[0] / "old").rename(out)
        return found

    action = partial(atomic_write.write_package, out, Package(new), force=True)
    experiments(f"package, {exchanges=}", prepare, action, state, beside, BadInput)
    first = partial(atomic_write.write_package, folder / "deep/er", Package(new))
    if exchanges:
        experiments(
            "first package", partial(empty, folder), first, lambda: tree(folder / "deep/er"), list, BadInput
        )


def of_a_single_file(folder: Path) -> None:
    path = folder / "report.json"

    def prepare() -> None:
        empty(folder)
        path.write_bytes(b"old")

    def beside() -> list[str]:
        return [p.name for p in folder.iterdir() if p != path]

    action = partial(atomic_write.write_file, path, b"new" * 50_000)
    experiments("file", prepare, action, path.read_bytes, beside, BadInput)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    of_the_cache(root / "cache")
    of_the_eviction(root / "cache")
    of_a_single_file(root / "file")
    of_the_package_writer(root / "package", True)
    of_the_package_writer(root / "package", False)
    print(f"{wrong} experiments went wrong")
    sys.exit(wrong != 0)
