"""Proof that a trimmed trainer computes what it should: bit for bit what the full one does."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minbuild.errors import ToolchainFailed, VerificationFailed
from minbuild.ir import Plan, Program
from minbuild.ir.mapped import FileBytes
from minbuild.ops import Registry
from minbuild.planning.size_limits import MOST_SAVED, saved_bytes, state_bytes
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, smallest_sizes
from minbuild.toolchain import run_python
from minbuild.verify.script import (
    EXIT_BAD_VALUE,
    GRAPH_OF,
    Action,
    Digests,
    Results,
    TestScript,
    is_finite,
    read_results,
    separated,
    write_script,
)

# What the arena holds before the session exists: NaN in one build and something else in the other, so that a
# kernel which reads what nobody wrote cannot get the same result twice.
TRIMMED_GARBAGE, FULL_GARBAGE = 0xFF, 0xA5
REPORT = "This is a mistake in minbuild or in a kernel, not in your model: please report this text."
FIRST = "step 1"
_SHOWN = 5  # tensors in a message


@dataclass(frozen=True, slots=True)
class EquivalenceResult:
    """A sentence for the report, and what the trimmed trainer recorded, where that was kept."""

    text: str
    results: Results


@dataclass(frozen=True, slots=True)
class Pace:
    """The scale of the real numbers in seeded batches, the learning rate, and the lowest of plain integers."""

    scale: float = 1.0
    rate: float = 0.01
    lowest: int = 0


# Some models lose themselves in infinite values on batches that are not of their data: then gentler ones are tried.
# A sequence of length 0 has nothing to attend to, and a softmax of nothing but -infinity is NaN by definition.
PACES = (Pace(), Pace(lowest=1), Pace(2.0**-3, 1e-3), Pace(2.0**-6, 1e-5), Pace(2.0**-6, 1e-5, lowest=1))


# Bytes of parameters and constants, gradients and optimizer state from which on whole runs are short: of the smallest
# batches, and two steps. Every step of the plan is looked at by itself as ever.
LARGE_STATE = 2**28


_LOST = (
    "the trainer cannot be proven: on seeded batches it computes NaN or infinite values: {}. Equal NaN prove nothing. "
    "Start from a checkpoint that is nearer to what the model was made for, or with smaller parameters."
)


def seeded_script(
    program: Program,
    plan: Plan,
    checkpoint: FileBytes,
    registry: Registry,
    saves: bool = True,
    pace: Pace = PACES[0],
) -> TestScript:
    """A few steps of everything a session can do, on seeded batches.

    `program` is as lowered, before passes; `plan` gives the order of the free dimensions; `checkpoint` is the file that
    sessions start from, as bytes; `registry` bounds index inputs; `saves` is True for libraries that write checkpoints,
    which they do where one holds the state; `pace` scales batches and learning rate."""
    large = state_bytes(plan) >= LARGE_STATE
    saves = saves and saved_bytes(plan) <= MOST_SAVED
    size = smallest_sizes(program, 2 if large else 4)
    sizes = [dict.fromkeys(plan.symbols, n) for n in (size, size - 1)]
    limits, inputs = index_limits(program, registry), inputs_of(program)
    graphs = {p.name: p.inputs for p in program.procedures}
    batches: dict[str, tuple[np.ndarray, ...]] = {}
    for number, at in enumerate((sizes[0], sizes[0], sizes[1])):
        arrays = seeded_batch(inputs, limits, at, number, scale=pace.scale, lowest=pace.lowest)
        for graph in ("train", "eval"):
            if graph in graphs:
                batches[f"{graph} {number}"] = tuple(arrays[name] for name in graphs[graph])
    actions = _session_actions(graphs, saves, pace.rate, program.fused_updates, large)
    if "initialize" in graphs:
        actions += _initialization_actions()
    return TestScript(tuple(size for _ in plan.symbols), batches, {"start": checkpoint}, actions)


def _session_actions(
    graphs: Collection[str], saves: bool, rate: float, fused_updates: bool, large: bool
) -> tuple[Action, ...]:
    """Evaluation, steps, evaluation again, saving: as far as there are graphs for it. Fewer for a `large` state."""
    numbers = (2,) if large else (2, 0)
    evaluation = [Action("eval", f"eval {n}", f"evaluation {n}") for n in numbers] if "eval" in graphs else []
    optimizer = [Action("optimizer")] if "optimize" in graphs else []
    train = _few_train_actions if large else _train_actions
    steps = train(optimizer) if "train" in graphs else _update_actions(optimizer)
    steps = _fused_actions() if fused_updates else steps
    last = "the last step" if large else "step 3"
    again = [Action(a.verb, a.operand, f"{a.label} after {last}") for a in evaluation if steps]
    saving = [Action("save", label="checkpoint")] if saves else []
    actions = [Action("create", "start"), Action("rate", repr(rate)), *evaluation, *steps, *again]
    return (*actions, Action("parameters", label="final parameters"), *saving)


def _train_actions(optimizer: list[Action]) -> list[Action]:
    """Two steps, and one of three accumulated batches of two sizes."""
    actions = [Action("train", "train 0", FIRST), Action("gradients", label=f"{FIRST} gradients")]
    actions += [*optimizer, Action("reset"), Action("parameters", label=f"{FIRST} parameters")]
    actions += [Action("train", "train 2", "step 2"), *optimizer, Action("reset")]
    actions += [Action("train", f"train {n}", f"step 3, batch {n}") for n in (1, 2, 0)]
    return [*actions, Action("gradients", label="step 3 gradients"), *optimizer]


def _few_train_actions(optimizer: list[Action]) -> list[Action]:
    """A step, and one of two accumulated batches of two sizes."""
    actions = [Action("train", "train 0", FIRST), Action("gradients", label=f"{FIRST} gradients")]
    actions += [*optimizer, Action("reset")]
    actions += [Action("train", f"train {n}", f"step 2, batch {n}") for n in (2, 1)]
    return [*actions, *optimizer]


def _fused_actions() -> list[Action]:
    """Three steps of two sizes whose updates are fused."""
    actions = [
        Action("train_and_update", "train 0", FIRST),
        Action("parameters", label=f"{FIRST} parameters"),
    ]
    return actions + [Action("train_and_update", f"train {n}", f"step {n + 1}") for n in (2, 1)]


def _update_actions(optimizer: list[Action]) -> list[Action]:
    """Three updates where gradients come from elsewhere: here, from the parameters themselves."""
    return [action for update in optimizer for _ in range(3) for action in (Action("copy"), update)]


def _initialization_actions() -> tuple[Action, ...]:
    """Starting over, and a step from there."""
    return (
        Action("initialize"),
        Action("parameters", label="parameters after initialization"),
        Action("train", "train 0", "step after initialization"),
        Action("parameters", label="parameters one step after initialization"),
    )


def run_script(label: str, script: TestScript, library: bytes, plan: FileBytes, garbage: int) -> Results:
    """The results of `script` with `library`, the bytes of a shared library of this machine, in a process of its own.

    `plan` is empty for a library with a compiled plan; the arena is full of the byte `garbage` beforehand. Raises
    VerificationFailed, naming the library by `label`, when it crashes or returns an error."""
    return _run(label, script, library, plan, garbage=garbage, kept=None)[0]


def _run(
    label: str, script: TestScript, library: bytes, plan: FileBytes, garbage: int, kept: Sequence[str] | None
) -> tuple[Results, Digests]:
    """`run_script` where results that `kept` does not name, unless it is None, are digests."""
    with scratch() as folder:
        write_script(folder, script, library, plan, garbage=garbage, kept=kept)
        ran = run_python("minbuild.verify.script", (), folder)
        if ran.code == EXIT_BAD_VALUE:  # batches are in range, so that it is what a step computes
            raise NotFinite(_LOST.format(f"the {label} refuses a step ({_last_line(ran.err)})"))
        if ran.code:
            raise VerificationFailed(f"{label}: {death(ran.code, ran.err)} {REPORT}")
        return read_results(folder)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one script. Raises ToolchainFailed when it cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix="minbuild-proof-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        raise ToolchainFailed(
            f"{error.filename or tempfile.gettempdir()}: the trainer cannot be proven: "
            f"{error.strerror or error}. Free some space, or set TMPDIR to a folder that can be written."
        ) from error


def death(code: int, reply: str) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the trainer crashed ({name}) while it was being proven."
    return f"the trainer failed while it was being proven: {_last_line(reply) or f'exit code {code}'}."


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].rstrip(".")


def prove_equal(
    script: TestScript,
    plan: FileBytes,
    trimmed: bytes,
    full: bytes,
    *,
    compiled: bool = False,
    compact: FileBytes = b"",
    separate_plan: FileBytes = b"",
    direct_plan: FileBytes = b"",
    keeps: bool = True,
) -> EquivalenceResult:
    """Compare the libraries `trimmed` and `full` of this machine on `script`: identical bits, none NaN or infinite.

    `plan` is what both run; `compiled` is True where the trimmed one has it compiled in; `compact` is the checkpoint
    that it starts from in place of the script's, if any. Where updates are fused into training steps, the full one
    runs `separate_plan`, which has them in steps of their own; where kernels have equals in their place,
    `direct_plan`, which has kernels of each operator's own. Unless it `keeps` results, digests are compared, and
    memory never holds more than one session. Raises VerificationFailed with all differences."""
    own = replace(script, checkpoints={**script.checkpoints, "start": compact}) if compact else script
    other = separated(script) if separate_plan else script
    mine = "trimmed build", own, trimmed, b"" if compiled else plan, TRIMMED_GARBAGE
    reference = "full build", other, full, separate_plan or direct_plan or plan, FULL_GARBAGE
    if not keeps:
        _compare_digests(mine, reference)
        return EquivalenceResult(_sentence(script), {})
    ours, theirs = run_script(*mine), run_script(*reference)
    findings = differences(ours, theirs)
    if findings:
        raise NotEqual(
            f"trimmed and full build do not compute the same: {'; '.join(findings[:_SHOWN])}"
            f"{f'; and {len(findings) - _SHOWN} more' if len(findings) > _SHOWN else ''}. {REPORT}"
        )
    lost = not_finite(ours)
    if lost:
        raise NotFinite(_LOST.format(f"{len(lost)} of {len(ours)} tensors hold them, from '{lost[0]}' on"))
    return EquivalenceResult(_sentence(script), ours)


_Run = tuple[str, TestScript, bytes, FileBytes, int]  # what `run_script` is given


def _compare_digests(mine: _Run, reference: _Run) -> None:
    """Raises VerificationFailed where results of two runs are not the same, or NaN or infinite."""
    ours, theirs = (_run(*given, ())[1] for given in (mine, reference))
    unequal = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if unequal:  # again, for the elements of those that messages are about
        shown = unequal[:_SHOWN]
        found = differences(_run(*mine, shown)[0], _run(*reference, shown)[0])
        more = len(unequal) - len(shown)
        raise NotEqual(
            f"trimmed and full build do not compute the same: {'; '.join(found)}"
            f"{f'; and {more} more' if more else ''}. {REPORT}"
        )
    lost = [name for name, digest in ours.items() if not digest.finite]
    if lost:
        raise NotFinite(_LOST.format(f"{len(lost)} of {len(ours)} tensors hold them, from '{lost[0]}' on"))


class NotEqual(VerificationFailed):
    """Two builds for one machine compute other bits."""


class NotFinite(VerificationFailed):
    """Values are the same, but NaN or infinite."""


def not_finite(results: Results) -> list[str]:
    """Names of the tensors with NaN or infinite values."""
    return [name for name, array in results.items() if not is_finite(array)]


def _sentence(script: TestScript) -> str:
    names = {a.operand for a in script.actions if a.verb in GRAPH_OF}
    sizes = sorted({a.shape[0] for n in names for a in script.batches[n] if a.ndim} if script.sizes else ())
    batches = f"on seeded batches{' of ' if sizes else ''}{' and '.join(map(str, sizes))} " if names else ""
    kinds = {"train": ("losses", "outputs", "gradients"), "train_and_update": ("losses", "outputs")}
    kinds |= {"parameters": ("parameters",)}
    kinds |= {"eval": ("evaluation",), "optimizer": ("optimizer state",), "save": ("the checkpoint",)}
    *did, last = [what for verb, names in kinds.items() if _has(script, verb) for what in names]
    builds = "trimmed build with fused updates and full build with separate ones"
    builds = builds if _has(script, "train_and_update") else "trimmed and full build"
    return (
        f"{builds} give identical bits {batches}in memory full of garbage: "
        f"{', '.join(did)}{' and ' if did else ''}{last}."
    )


def _has(script: TestScript, verb: str) -> bool:
    return any(a.verb == verb for a in script.actions)


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
