"""Runs what was built: directly, or under an emulator of another machine."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import minbuild
from minbuild.errors import BadInput, ToolchainFailed
from minbuild.ir.mapped import FileBytes, write_bytes
from minbuild.toolchain.cache import user_cache
from minbuild.toolchain.process import Processes, clean_environment
from minbuild.toolchain.targets import Target, host_target

RUN_SECONDS = "MINBUILD_RUN_SECONDS"  # environment variable: how long a program may run that is proven
_MORE = f"Set {RUN_SECONDS} to a larger number, or give it less work."


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program: exit code (negative for a signal), standard output, standard error."""

    code: int
    out: bytes
    err: str


# Where systems have what is needed to run programs of other machines; everything else is in qemu-user.
_PACKAGES = {"node": "nodejs", "qemu-system-arm": "qemu-system-arm", "wine": "wine"}
# Debian has the loader of 64-bit programs here when only that is installed.
_WINE = "/usr/lib/wine/wine64"
_WINE_SETTINGS = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}  # no questions, no chatter
# A chip's files, output and exit code are those of the emulator, by semihosting. No other device speaks.
_SEMIHOSTING = (
    *("-display", "none", "-monitor", "none", "-serial", "none"),
    *("-chardev", "stdio,id=host,signal=off", "-semihosting-config", "enable=on,target=native,chardev=host"),
)


def find_emulator(target: Target) -> list[str] | None:
    """The command in front of a program of this target: nothing where it runs here, an emulator, or None for
    neither. A WebAssembly module is run by the script `runner.mjs` in the current folder.
    """
    if _runs_here(target):
        return []
    name = target.traits.emulator
    path = _wine() if name == "wine" else name and (shutil.which(name) or shutil.which(f"{name}-static"))
    if not path:
        return None
    if name == "node":
        return [path, "runner.mjs"]
    if name == "qemu-system-arm":
        return [path, "-M", target.traits.machine, *_SEMIHOSTING, "-kernel"]
    return [path]


def _wine() -> str | None:
    """The loader of 64-bit Windows programs."""
    return shutil.which("wine64") or (_WINE if os.access(_WINE, os.X_OK) else shutil.which("wine"))


def why_not_run(target: Target) -> str:
    """Why programs of a target do not run here, and what would help: for targets without an emulator."""
    needed = target.traits.emulator
    if not needed:
        return "its programs do not run here, and nothing emulates it. Run it on such a machine."
    package = _PACKAGES.get(needed, "qemu-user")
    return f"no emulator is installed. Install {needed} (package {package} on most Linux systems)."


def _runs_here(target: Target) -> bool:
    try:
        host = host_target().traits
    except BadInput:
        return False
    # A static musl program runs on every Linux of its architecture; a dynamic glibc one needs glibc.
    foreign_libc = "gnu" in target.name and "musl" in host.name
    return (host.arch, host.os) == (target.traits.arch, target.traits.os) and not foreign_libc


def patience() -> float:
    """Seconds that a program may run. Raises BadInput."""
    text = os.environ.get(RUN_SECONDS, "3600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise BadInput(f"{RUN_SECONDS}={text}: is no number of seconds. Set it to one, such as 3600.")
    return seconds


def run_program(
    program: bytes,
    arguments: Sequence[str] = (),
    *,
    target: Target,
    files: Mapping[str, FileBytes] | None = None,
    timeout: float | None = None,
) -> ProgramResult:
    """Run a program in a fresh folder that holds `files`, for at most `timeout` seconds: `patience` where that is
    None.

    `program` is the bytes of the executable, for `target`; `arguments` are its own. Raises ToolchainFailed when
    nothing here can run programs of this target, or when it takes too long."""
    emulator = find_emulator(target)
    if emulator is None:
        raise ToolchainFailed(f"{target}: {why_not_run(target)}")
    cure = "Give it less work." if timeout is not None else _MORE
    timeout = patience() if timeout is None else timeout
    with tempfile.TemporaryDirectory(prefix="minbuild-run-") as name, Processes() as processes:
        folder = Path(name)
        for path, data in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / path, data)
        binary = folder / "program"
        binary.write_bytes(program)
        os.chmod(binary, 0o755)
        try:
            environment = _WINE_SETTINGS | {"WINEPREFIX": str(user_cache().root / "wine")}
            extra = environment if target.traits.emulator == "wine" else {}
            result = processes.run(
                (*emulator, str(binary), *arguments), folder, clean_environment(extra), timeout
            )
        except subprocess.TimeoutExpired as error:
            raise ToolchainFailed(
                f"{target}: the program did not finish within {timeout:g} s. {cure}"
            ) from error
    return ProgramResult(result.code, result.out, result.err)


def run_python(
    module: str, arguments: Sequence[str], folder: Path, timeout: float | None = None
) -> ProgramResult:
    """Run `python -m module` with this interpreter and this minbuild in `folder`: what it does, a crash included,
    cannot hurt us. `module` is its name, `arguments` are its own. Raises ToolchainFailed after `timeout` seconds:
    `patience` where that is None."""
    timeout = patience() if timeout is None else timeout
    ours = str(Path(minbuild.__file__).resolve().parents[1])
    path = os.pathsep.join(p for p in (ours, os.environ.get("PYTHONPATH", "")) if p)
    command = (sys.executable, "-m", module, *arguments)
    try:
        with Processes() as processes:
            result = processes.run(command, folder, clean_environment({"PYTHONPATH": path}), timeout)
    except subprocess.TimeoutExpired as error:
        raise ToolchainFailed(f"python -m {module}: did not finish within {timeout:g} s. {_MORE}") from error
    return ProgramResult(result.code, result.out, result.err)
