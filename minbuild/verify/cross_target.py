"""Trainers run as programs, under an emulator where they are for other machines: they compute what this machine's do
within rounding, and tell how deep their stack was."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from minbuild import assets
from minbuild.errors import VerificationFailed
from minbuild.ir.size_report import Stack, Verification
from minbuild.toolchain import (
    BuildOutput,
    Target,
    Toolchain,
    build_program,
    find_emulator,
    run_program,
    why_not_run,
)
from minbuild.verify import runner_protocol as runner
from minbuild.verify.differential import FIRST, REPORT, TRIMMED_GARBAGE, death, scratch
from minbuild.verify.script import Results, TestScript

# How runner.c gets at files and memory.
_HOSTED, _SEMIHOSTED = ("host_stdio.c",), ("host_semihosting.c", "host_semihosting.inc")
# Between machines sums are formed in another order. Until the first optimizer step that is all there is;
# behind it optimizers magnify it, most where a true gradient is zero.
FIRST_LIMIT, LATER_LIMIT = 2.0**-10, 2.0**-4


def prove_foreign(
    trial: TestScript,
    plan: bytes,
    built: BuildOutput,
    target: Target,
    toolchain: Toolchain,
    expected: Results,
) -> Verification:
    """What can be said about the library of another machine, run under an emulator against `expected`, what this
    machine recorded. Raises VerificationFailed when they disagree by more than rounding."""
    emulator = find_emulator(target)
    if emulator is None:
        return not_proven(why_not_run(target))
    said = _performed(trial, plan, built, target, toolchain)
    first, later = agreement(runner.decode(said, expected), expected, str(target))
    where = f"run under {Path(emulator[0]).name}" if emulator else "run as a static program"
    return Verification(f"{where}, {_sentence(trial, first, later)}", stack=runner.stack_of(said))


def not_proven(reason: str) -> Verification:
    """What is said of a library that was not run."""
    return Verification(f"NOT PROVEN: {reason}", proven=False, reason=reason)


def _sentence(trial: TestScript, first: float, later: float) -> str:
    if first == later == 0:
        return "it gives the same bits as this machine's build."
    if not any(action.verb == "train" for action in trial.actions):
        return f"it agrees with this machine's build: everything within {max(first, later):.2g} of the largest element."
    return (
        "it agrees with this machine's build: evaluation, losses, outputs and gradients of "
        f"the first step within {first:.2g} of the largest element, everything after three optimizer "
        f"steps within {later:.2g}."
    )


def measure_stack(
    trial: TestScript, plan: bytes, built: BuildOutput, target: Target, toolchain: Toolchain
) -> Stack | None:
    """How deep the stack is in each call of a trial; None where programs of the target do not run. Raises
    VerificationFailed."""
    if find_emulator(target) is None:
        return None
    return runner.stack_of(_performed(trial, plan, built, target, toolchain))


def _performed(
    trial: TestScript, plan: bytes, built: BuildOutput, target: Target, toolchain: Toolchain
) -> bytes:
    """What the program answers that performs a trial. Raises VerificationFailed where it crashes or refuses."""
    saves = any(action.verb == "save" for action in trial.actions)
    program, files = _performer(built, target, toolchain, saves)
    files |= {"plan": plan, "script": runner.encode(trial, TRIMMED_GARBAGE)}
    with scratch():
        ran = run_program(program, target=target, files=files)
    emulator = find_emulator(target)
    if emulator and ran.code == -signal.SIGILL:
        raise VerificationFailed(
            f"{target}: {Path(emulator[0]).name} met an instruction that it does not know. Install a newer one, or "
            f"name an older processor with --target {target.name}:CPU. If neither helps, please report this text."
        )
    if ran.code:
        # A chip has one channel for answers and errors.
        said = ran.err or ran.out[-200:].rpartition(b"\0")[2].decode(errors="replace")
        raise VerificationFailed(f"{target}: {death(ran.code, said)} {REPORT}")
    return ran.out


def _performer(
    built: BuildOutput, target: Target, toolchain: Toolchain, saves: bool
) -> tuple[bytes, dict[str, bytes]]:
    """What performs a script, and the files it needs beside it: a WebAssembly module as it ships, a program with
    the static library in it everywhere else."""
    folder = assets.root("templates") / "verify"
    if target.traits.format == "wasm":
        return built.shared, {"runner.mjs": (folder / "runner.mjs").read_bytes()}
    machine = target.traits.machine
    names = ["runner.c", "host.h", *((*_SEMIHOSTED, f"{machine}.ld") if machine else _HOSTED)]
    sources = {name: (folder / name).read_bytes() for name in names}
    sources["saves.h"] = f"#define MB_SAVES {saves:d}\n".encode()
    header = "include/minbuild/trainer.h"
    sources[header] = (assets.root("kernels") / header).read_bytes()
    return build_program(sources, built.archive, target, toolchain), {}


def agreement(found: Results, expected: Results, label: str) -> tuple[float, float]:
    """The worst deviation up to the first optimizer step, and of everything else, each relative to the
    largest element of all tensors of its kind. Raises VerificationFailed above the limits."""
    scales = _scales(expected)
    worst = {FIRST_LIMIT: (0.0, ""), LATER_LIMIT: (0.0, "")}
    for name, array in expected.items():
        if array.dtype.kind != "f":
            continue
        error = np.abs(found[name].astype(np.float64) - array)
        error = np.where(
            np.isnan(error), np.where(np.isnan(found[name]) & np.isnan(array), 0.0, np.inf), error
        )
        deviation = float(error.max(initial=0.0)) / scales[_kind(name)]
        early = (
            name.startswith((f"{FIRST}/", f"{FIRST} gradients"))
            or "after" not in name
            and "evaluation" in name
        )
        limit = FIRST_LIMIT if early else LATER_LIMIT
        worst[limit] = max(worst[limit], (deviation, name))
    findings = [
        f"'{name}' deviates by {d:.2g}, allowed {limit:.2g}"
        for limit, (d, name) in worst.items()
        if d > limit
    ]
    if findings:
        raise VerificationFailed(
            f"{label}: does not agree with this machine: {'; '.join(findings)}. {REPORT}"
        )
    return worst[FIRST_LIMIT][0], worst[LATER_LIMIT][0]


def _kind(name: str) -> str:
    return name.split("/")[0]


def _scales(results: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest finite magnitude of each kind of tensor, so that tensors which are zero but for rounding do not
    count."""
    scales: dict[str, float] = {}
    for name, array in results.items():
        if array.dtype.kind == "f":
            finite = np.abs(array[np.isfinite(array)])
            scales[_kind(name)] = max(scales.get(_kind(name), 1e-30), float(finite.max(initial=0)))
    return scales
