"""Proof that a trimmed trainer computes what it should: bit for bit what the full one does, and on other
machines what this one does within rounding."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minbuild import assets, runner
from minbuild.batches import index_limits, inputs_of, seeded_batch
from minbuild.dims import evaluate
from minbuild.errors import ToolchainFailed, VerificationFailed
from minbuild.model import Plan, Program
from minbuild.ops import Registry
from minbuild.replay import Action, Results, Trial, read_results, write_trial
from minbuild.toolchain import Built, Target, Toolchain, build_program, find_emulator, run_program, run_python

# What the arena holds before the session exists: NaN in one build and something else in the other, so that a
# kernel which reads what nobody wrote cannot get the same answer twice.
TRIMMED_GARBAGE, FULL_GARBAGE = 0xFF, 0xA5
_REPORT = "This is a mistake in minbuild or in a kernel, not in your model: please report this text."
_SIZES = (4, 8, 16, 32, 64, 128, 256)  # of free dimensions, until no tensor is empty
FIRST = "step 1"
# How runner.c gets at files and memory.
_HOSTED, _SEMIHOSTED = ("host_stdio.c",), ("host_semihosting.c", "host_semihosting.inc")
# Between machines sums are formed in another order. Until the first optimizer step that is all there is;
# behind it optimizers magnify it, most where a true gradient is zero.
FIRST_LIMIT, LATER_LIMIT = 2.0**-10, 2.0**-4


@dataclass(frozen=True, slots=True)
class Proof:
    """A sentence for the report, and what the trimmed trainer recorded."""

    text: str
    results: Results


def seeded_trial(program: Program, plan: Plan, checkpoint: bytes, registry: Registry) -> Trial:
    """A few steps of everything a session can do. `program` as lowered, before passes."""
    size = _usable_size(program)
    sizes = [dict.fromkeys(plan.symbols, n) for n in (size, size - 1)]
    limits, inputs = index_limits(program, registry), inputs_of(program)
    graphs = {p.name: p.inputs for p in program.procedures}
    batches: dict[str, tuple[np.ndarray, ...]] = {}
    for number, at in enumerate((sizes[0], sizes[0], sizes[1])):
        arrays = seeded_batch(inputs, limits, at, number)
        for graph in ("train", "eval"):
            if graph in graphs:
                batches[f"{graph} {number}"] = tuple(arrays[name] for name in graphs[graph])
    actions = _session_actions("eval" in graphs, "optimize" in graphs)
    if "initialize" in graphs:
        actions += _initialization_actions()
    return Trial(tuple(size for _ in plan.symbols), batches, {"start": checkpoint}, actions)


def _session_actions(evaluates: bool, optimizes: bool) -> tuple[Action, ...]:
    """Evaluation, two steps, one of three accumulated batches of two sizes, evaluation again, saving."""
    evaluation = [Action("eval", f"eval {n}", f"evaluation {n}") for n in (2, 0)] if evaluates else []
    optimizer = [Action("optimizer")] if optimizes else []
    actions = [Action("create", "start"), Action("rate", "0.01"), *evaluation]
    actions += [Action("train", "train 0", FIRST), Action("gradients", label=f"{FIRST} gradients")]
    actions += [*optimizer, Action("reset"), Action("parameters", label=f"{FIRST} parameters")]
    actions += [Action("train", "train 2", "step 2"), *optimizer, Action("reset")]
    actions += [Action("train", f"train {n}", f"step 3, batch {n}") for n in (1, 2, 0)]
    actions += [Action("gradients", label="step 3 gradients"), *optimizer]
    actions += [Action(a.verb, a.operand, f"{a.label} after step 3") for a in evaluation]
    return (*actions, Action("parameters", label="final parameters"), Action("save", label="checkpoint"))


def _initialization_actions() -> tuple[Action, ...]:
    """Starting over, and a step from there."""
    return (
        Action("initialize"),
        Action("parameters", label="parameters after initialization"),
        Action("train", "train 0", "step after initialization"),
        Action("parameters", label="parameters one step after initialization"),
    )


def _usable_size(program: Program) -> int:
    """The smallest size for all free dimensions at which, also with one less, every tensor has elements."""
    shapes = {v.type.shape or () for p in program.procedures for v in p.values.values()}
    dims = {d for shape in shapes for d in shape if not isinstance(d, int)}
    for size in _SIZES:
        if all(evaluate(d, dict.fromkeys(program.symbols, n)) > 0 for d in dims for n in (size, size - 1)):
            return size
    return _SIZES[0]


def run_trial(label: str, trial: Trial, library: bytes, plan: bytes, garbage: int) -> Results:
    """What the trial records with a shared library of this machine, in a process of its own. Raises
    VerificationFailed, naming the library by `label`, when that crashes or answers with an error."""
    with _scratch() as folder:
        write_trial(folder, trial, library, plan, garbage)
        ran = run_python("minbuild.replay", (), folder)
        if ran.code:
            raise VerificationFailed(f"{label}: {_death(ran.code, ran.err)} {_REPORT}")
        return read_results(folder)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for one trial. Raises ToolchainFailed when it cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix="minbuild-proof-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        raise ToolchainFailed(
            f"{error.filename or tempfile.gettempdir()}: the trainer cannot be proven: "
            f"{error.strerror or error}. Free some space, or set TMPDIR to a folder that can be written."
        ) from error


def _death(code: int, said: str) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the trainer crashed ({name}) while it was being proven."
    last = (said.strip().splitlines() or [f"exit code {code}"])[-1].rstrip(".")
    return f"the trainer failed while it was being proven: {last}."


def prove_equal(trial: Trial, plan: bytes, trimmed: bytes, full: bytes) -> Proof:
    """Both libraries of this machine compute identical bits. Raises VerificationFailed with all
    differences."""
    ours = run_trial("trimmed build", trial, trimmed, plan, TRIMMED_GARBAGE)
    theirs = run_trial("full build", trial, full, plan, FULL_GARBAGE)
    findings = differences(ours, theirs)
    if findings:
        raise VerificationFailed(
            f"trimmed and full build do not compute the same: {'; '.join(findings[:5])}"
            f"{f'; and {len(findings) - 5} more' if len(findings) > 5 else ''}. {_REPORT}"
        )
    return Proof(_sentence(trial, ours), ours)


def _sentence(trial: Trial, results: Results) -> str:
    names = {a.operand for a in trial.actions if a.verb == "train"}
    sizes = sorted({a.shape[0] for n in names for a in trial.batches[n] if a.ndim} if trial.sizes else ())
    batches = f"batches of {' and '.join(map(str, sizes))}" if sizes else "batches"
    did = [
        what for what, verb in (("evaluation", "eval"), ("optimizer state", "optimizer")) if _has(trial, verb)
    ]
    text = (
        f"trimmed and full build give identical bits on seeded {batches} in memory full of garbage: "
        f"{', '.join(('losses', 'outputs', 'gradients', 'parameters', *did))} and the checkpoint."
    )
    bad = sum(1 for a in results.values() if a.dtype.kind == "f" and not np.isfinite(a).all())
    return text + (
        f" {bad} of {len(results)} tensors hold infinite values or NaN on these batches." if bad else ""
    )


def _has(trial: Trial, verb: str) -> bool:
    return any(a.verb == verb for a in trial.actions)


def differences(ours: Results, theirs: Results) -> list[str]:
    """One phrase per tensor that is not the same bit for bit."""
    found = [f"'{name}' is recorded by one build only" for name in sorted(set(ours) ^ set(theirs))]
    for name in (n for n in ours if n in theirs):
        a, b = ours[name], theirs[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"'{name}' is {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}")
        elif a.tobytes() != b.tobytes():
            unequal = int(np.count_nonzero(_bits(a) != _bits(b)))
            found.append(f"'{name}' differs in {unequal} of {a.size} elements")
    return found


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


# ------------------------------------------------------------------------------------------- other machines


def prove_foreign(
    trial: Trial, plan: bytes, built: Built, target: Target, toolchain: Toolchain, expected: Results
) -> str:
    """A sentence about the library of another machine, run under an emulator against `expected`, what this
    machine recorded. Raises VerificationFailed when they disagree by more than rounding."""
    emulator = find_emulator(target)
    if emulator is None:
        needed = target.traits.emulator
        why = f"no emulator ({needed}) is installed" if needed else "its programs do not run here"
        return f"not proven for {target}: {why}. The same sources, built for this machine, are proven."
    program, files = _performer(built, target, toolchain)
    files |= {"plan": plan, "script": runner.encode(trial, TRIMMED_GARBAGE)}
    with _scratch():
        ran = run_program(program, target=target, files=files)
    if ran.code:
        # A chip has one channel for answers and errors.
        said = ran.err or ran.out[-200:].rpartition(b"\0")[2].decode(errors="replace")
        raise VerificationFailed(f"{target}: {_death(ran.code, said)} {_REPORT}")
    first, later = agreement(runner.decode(ran.out, expected), expected, str(target))
    where = f"run under {Path(emulator[0]).name}" if emulator else "run as a static program"
    if first == later == 0:
        return f"{where}, it gives the same bits as this machine's build."
    return (
        f"{where}, it agrees with this machine's build: evaluation, losses, outputs and gradients of "
        f"the first step within {first:.2g} of the largest element, everything after three optimizer "
        f"steps within {later:.2g}."
    )


def _performer(built: Built, target: Target, toolchain: Toolchain) -> tuple[bytes, dict[str, bytes]]:
    """What performs a script, and the files it needs beside it: a WebAssembly module as it ships, a program with
    the static library in it everywhere else."""
    folder = assets.root("templates") / "verify"
    if target.traits.format == "wasm":
        return built.shared, {"runner.mjs": (folder / "runner.mjs").read_bytes()}
    machine = target.traits.machine
    names = ["runner.c", "host.h", *((*_SEMIHOSTED, f"{machine}.ld") if machine else _HOSTED)]
    sources = {name: (folder / name).read_bytes() for name in names}
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
            f"{label}: does not agree with this machine: {'; '.join(findings)}. {_REPORT}"
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
