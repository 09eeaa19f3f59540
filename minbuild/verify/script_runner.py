"""Runs a test script with `templates/verify/runner.c` in a program of any target: directly, or under an emulator."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from minbuild import assets
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import ToolchainFailed, VerificationFailed
from minbuild.ir.mapped import FileBytes
from minbuild.ops import Registry
from minbuild.ops.core.definition import SCRATCH
from minbuild.toolchain import Target, Toolchain, build_program, find_emulator, run_program
from minbuild.toolchain.compile_library import Sources
from minbuild.verify import runner_protocol as runner
from minbuild.verify.differential import REPORT, TRIMMED_GARBAGE, death, scratch
from minbuild.verify.script import TestScript

_STEPS = ("steps.cc", "steps.h", "step_memory.h", "step_pages.h", "step_noise.h")
# How runner.c gets at files and memory.
_POSIX, _WINDOWS = "host_posix.c", "host_windows.c"
_SEMIHOSTED = ("host_semihosting.c", "host_semihosting.inc")
_CALLS = {"linux": "linux_calls.c", "windows": "windows_calls.c"}  # in place of a C library


class Watch(IntEnum):
    """The task of steps.cc at every step besides running it."""

    RUN = 0
    FOLLOW = 1
    MEASURE = 2
    DISTURB = 3
    LOOK = 4


def perform(
    script: TestScript, plan: FileBytes, library: BuiltLibrary, target: Target, toolchain: Toolchain
) -> bytes:
    """The reply of the runner that performs `script` with the bytes of `plan` on `target`: `library` as it ships in a
    WebAssembly module, the static one in a program, linked by `toolchain`, everywhere else. Raises VerificationFailed
    where it crashes or refuses, ToolchainFailed where the program cannot be built."""
    files = {
        "plan": library.plan_for(plan),
        "script": runner.encode(script, TRIMMED_GARBAGE),
        **runner.files_of(script),
    }
    if target.traits.format == "wasm":
        text = (assets.root("templates") / "verify" / "runner.mjs").read_bytes()
        return _reply(library.built.shared, target, {**files, "runner.mjs": text})
    sources = _sources(target, {"MB_SAVES": _saves(script), "MB_STEPS": 0, "MB_MEASURES": 0})
    return _reply(_program(sources, library, target, toolchain), target, files)


def watch(
    how: Watch,
    script: TestScript,
    plan: FileBytes,
    library: BuiltLibrary,
    target: Target,
    toolchain: Toolchain,
    registry: Registry,
    *,
    trace: bytes = b"",
    seed: int = 1,
) -> bytes:
    """`perform` of `script` with every step watched, `how` says for what. The program has the objects of the static
    library, but for the table of kernels, which is compiled again with steps.cc around it. `trace` holds the outputs
    that steps are compared with; `registry` distinguishes outputs from scratch; `seed` varies disturbances; `plan`,
    `library`, `target` and `toolchain` are as there. Raises as `perform`."""
    measures = how in (Watch.MEASURE, Watch.DISTURB)
    choices = {"MB_SAVES": _saves(script), "MB_STEPS": 1, "MB_MEASURES": int(measures)}
    sources = _sources(target, choices) | _watching(library, registry)
    files = {
        "plan": library.plan_for(plan),
        "script": runner.encode(script, TRIMMED_GARBAGE, how | seed << 3),
        **runner.files_of(script),
        "trace": trace,
    }
    if target.traits.format == "wasm":
        files["runner.mjs"] = (assets.root("templates") / "verify" / "host_wasm.mjs").read_bytes()
    return _reply(_program(sources, library, target, toolchain), target, files)


def time_steps(
    script: TestScript,
    plan: FileBytes,
    library: BuiltLibrary,
    target: Target,
    toolchain: Toolchain,
    timeout: float | None = None,
) -> bytes:
    """The nanoseconds of every step of `script`, which records nothing, as times.cc sends them, after the peak of the
    machine. `plan`, `library`, `target`, which is no WebAssembly, and `toolchain` are as for `perform`. Raises as
    that, and ToolchainFailed after `timeout` seconds: as `run_program` where that is None."""
    sources = _sources(target, {"MB_SAVES": 0, "MB_STEPS": 1, "MB_MEASURES": 0})
    folder = assets.root("templates") / "verify"
    sources |= {name: (folder / name).read_bytes() for name in ("times.cc", "steps.h")} | _table(library)
    files = {
        "plan": library.plan_for(plan),
        "script": runner.encode(script, TRIMMED_GARBAGE, Watch.LOOK),
        **runner.files_of(script),
    }
    program = build_program(sources, library.built.archive, target, toolchain)
    return _reply(program, target, files, timeout)


def _saves(script: TestScript) -> int:
    return int(any(action.verb == "save" for action in script.actions))


def _program(sources: Sources, library: BuiltLibrary, target: Target, toolchain: Toolchain) -> bytes:
    """The runner with the static library: without a C library where one would have to be built first, unless the
    trainer needs more of it than the runner, as kernels of one's own may."""
    archive = library.built.archive
    if toolchain.links_without_libc(target):
        name = _CALLS[target.traits.os]
        calls = {name: (assets.root("templates") / "verify" / name).read_bytes()}
        with suppress(ToolchainFailed):
            return build_program({**sources, **calls}, archive, target, toolchain, libc=False)
    return build_program(sources, archive, target, toolchain)


def _sources(target: Target, choices: Mapping[str, int]) -> dict[str, bytes]:
    """The runner, and what it needs of where it runs."""
    folder = assets.root("templates") / "verify"
    traits = target.traits
    host: tuple[str, ...] = (_WINDOWS if traits.os == "windows" else _POSIX,)
    if traits.format == "wasm":
        host = ("host_wasm.c",)
    elif traits.machine:
        host = (*_SEMIHOSTED, f"{traits.machine}.ld")
    sources = {name: (folder / name).read_bytes() for name in ("runner.c", "host.h", *host)}
    sources["choices.h"] = "".join(f"#define {name} {value}\n" for name, value in choices.items()).encode()
    header = "include/minbuild/trainer.h"
    sources[header] = (assets.root("kernels") / header).read_bytes()
    return sources


def _watching(library: BuiltLibrary, registry: Registry) -> dict[str, bytes]:
    """steps.cc and its headers, the table it compiles, and the library's headers."""
    folder = assets.root("templates") / "verify"
    sources = {name: (folder / name).read_bytes() for name in _STEPS}
    sources |= _table(library)
    specs = [spec for kernel in library.kernels for spec in registry.functions[kernel.function].args]
    scratches = [int(spec.split(":")[1].rstrip("=?") == SCRATCH) for spec in specs] or [0]
    sources["slots.h"] = (
        f"static const unsigned char kScratchSlots[] = {{{', '.join(map(str, scratches))}}};\n".encode()
    )
    return sources


def _table(library: BuiltLibrary) -> dict[str, bytes]:
    """The table of kernels, to be compiled again, and the library's headers."""
    sources = {path: text for path, text in library.sources.items() if not path.endswith(".cc")}
    sources["src/kernel_table.inc"] = library.sources["src/kernel_table.cc"]
    return sources


def _reply(
    program: bytes, target: Target, files: Mapping[str, FileBytes], timeout: float | None = None
) -> bytes:
    with scratch():
        ran = run_program(program, target=target, files=files, timeout=timeout)
    emulator = find_emulator(target)
    if emulator and ran.code == -signal.SIGILL:
        raise VerificationFailed(
            f"{target}: {Path(emulator[0]).name} met an instruction that it does not know. Install a newer one, or "
            f"name an older processor with --target {target.name}:CPU. If neither helps, please report this text."
        )
    if ran.code:
        # A chip has one channel for replies and errors.
        message = ran.err or ran.out[-200:].rpartition(b"\0")[2].decode(errors="replace")
        raise VerificationFailed(f"{target}: {death(ran.code, message)} {REPORT}")
    return ran.out
