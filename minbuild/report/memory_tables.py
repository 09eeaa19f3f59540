"""Tables of memory: what a session takes, and what is there when it is fullest."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.ir.size_report import Arena, ModelReport, TargetReport
from minbuild.report.table import Line, Table, percent


def memory(facts: ModelReport, target: TargetReport) -> Table:
    """RAM while a session lives, and what is read in place."""
    p = facts.persistent
    at = ", ".join(f"{name} {value:,}" for name, value in facts.sizes)
    lines = [Line((f"Arena: {a.graph}", a.peak, _bound(a))) for a in facts.arenas]
    lines.append(Line(("Largest arena", facts.arena, "one serves all"), "sum"))
    lines += [
        Line(
            (f"The same at {s.symbol} {s.size}", s.arena, f"RAM then {target.ram - facts.arena + s.arena:,}")
        )
        for s in facts.smaller
    ]
    lines += [
        Line(("Parameters", p.parameters, "trained")),
        Line(("Gradients", p.gradients, "")),
        Line(("Optimizer state", p.optimizer, "")),
        Line(("State", p.state, "running statistics" if p.parameters else "what training steps update")),
        Line(("Counters and padding", p.other, "")),
        Line(("Persistent", p.total, ""), "sum"),
        Line(("Static: initialised data", target.static.data, ".data")),
        Line(("Static: zeroed data", target.static.bss, ".bss")),
        Line(("RAM", target.ram, "largest arena + persistent + static"), "total"),
        *_stack(target),
        Line(("Frozen parameters", p.frozen, "read in place from the checkpoint")),
        Line(("Plan file", facts.plan_bytes, "read in place")),
        Line(("Checkpoint file", facts.checkpoint_bytes, "")),
    ]
    return Table(
        "memory",
        "Memory",
        f"At {at}." if at else "Every size of this model is fixed.",
        ("What ", "Bytes", "Remark "),
        tuple(lines),
    )


def _stack(target: TargetReport) -> Iterator[Line]:
    """How deep the stack was, call by call, and RAM with it."""
    stack = target.stack
    if stack is None:
        yield Line(("Deepest stack", "–", "not measured: no program of this target was run"))
        return
    for call, size in stack.calls:
        yield Line((f"Stack: {call}", size, "measured in a run"))
    yield Line(("Deepest stack", stack.deepest, f"in {stack.call}; the caller's own comes before it"), "sum")
    yield Line(("RAM and stack", target.ram + stack.deepest, ""), "total")


def _bound(arena: Arena) -> str:
    over = f" (+{percent(arena.peak - arena.bound, arena.bound)})" if arena.bound else ""
    return f"least possible {arena.bound:,}{over}"


def alive(facts: ModelReport, limit: int | None = None) -> Table:
    """What is in the largest arena at its fullest step. With `limit`, the smaller tensors are added up in one row."""
    arena = max(facts.arenas, key=lambda a: a.peak)
    shown = arena.alive if limit is None or len(arena.alive) <= limit else arena.alive[: limit - 1]
    lines = [Line((a.name, a.phase, a.node, a.bytes, percent(a.bytes, arena.peak))) for a in shown]
    if rest := arena.alive[len(shown) :]:
        size = sum(a.bytes for a in rest)
        lines.append(Line((f"{len(rest)} smaller ones", "", "", size, percent(size, arena.peak))))
    gaps = arena.peak - arena.bound
    lines.append(Line(("Alive at once", "", "", arena.bound, percent(arena.bound, arena.peak)), "sum"))
    lines.append(Line(("Gaps that the layout leaves", "", "", gaps, percent(gaps, arena.peak))))
    lines.append(Line(("Peak of the arena", "", "", arena.peak, percent(arena.peak, arena.peak)), "total"))
    return Table(
        "alive",
        "Memory when it is fullest",
        _when(arena),
        ("Tensor ", "Phase ", "Made by ", "Bytes", "Of peak"),
        tuple(lines),
    )


def _when(arena: Arena) -> str:
    return f"What is alive in {arena.graph} at step {arena.step}, which runs {arena.node}."
