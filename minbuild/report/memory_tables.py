"""Tables of memory: RAM of a session, and the live tensors at the peak of its arena."""

from __future__ import annotations

from collections.abc import Iterator

from minbuild.ir.ram_price import RamPoint, RamPrice
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
        Line(("Session's own tables", target.session.tables, "and padding")),
        *(
            (Line(("Stacks of threads", target.session.stacks, "besides the caller's")),)
            if target.session.stacks
            else ()
        ),
        Line(("One session", target.ram - target.static.total, "the result of mb_arena_size"), "sum"),
        Line(("Static: initialised data", target.static.data, ".data")),
        Line(("Static: zeroed data", target.static.bss, ".bss")),
        Line(("RAM", target.ram, "one session + static"), "total"),
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
    """The depth of the stack, call by call, and RAM with it."""
    stack = target.stack
    if stack is None:
        yield Line(("Peak stack", "–", "not measured: no program of this target was run"))
        return
    for call, size in stack.calls:
        yield Line((f"Stack: {call}", size, "measured in a run"))
    yield Line(("Peak stack", stack.peak, f"in {stack.call}; the caller's own comes before it"), "sum")
    yield Line(("RAM and stack", target.ram + stack.peak, ""), "total")


def _bound(arena: Arena) -> str:
    over = f" (+{percent(arena.peak - arena.lower_bound, arena.lower_bound)})" if arena.lower_bound else ""
    return f"at least {arena.lower_bound:,} for this order of steps{over}"


def live_tensors(facts: ModelReport, limit: int | None = None) -> Table:
    """The live tensors of the largest arena at its peak. With `limit`, the smaller tensors are added up in one row."""
    arena = max(facts.arenas, key=lambda a: a.peak)
    shown = arena.live if limit is None or len(arena.live) <= limit else arena.live[: limit - 1]
    lines = [Line((a.name, a.phase, a.node, a.bytes, percent(a.bytes, arena.peak))) for a in shown]
    if rest := arena.live[len(shown) :]:
        size = sum(a.bytes for a in rest)
        lines.append(Line((f"{len(rest)} smaller ones", "", "", size, percent(size, arena.peak))))
    gaps = arena.peak - arena.lower_bound
    lines.append(
        Line(
            (
                "Live at the peak: the least for this order",
                "",
                "",
                arena.lower_bound,
                percent(arena.lower_bound, arena.peak),
            ),
            "sum",
        )
    )
    lines.append(Line(("Fragmentation", "", "", gaps, percent(gaps, arena.peak))))
    lines.append(Line(("Peak of the arena", "", "", arena.peak, percent(arena.peak, arena.peak)), "total"))
    return Table(
        "peak-memory",
        "Peak memory",
        _when(arena),
        ("Tensor ", "Phase ", "Made by ", "Bytes", "Of peak"),
        tuple(lines),
    )


def time_over_memory(facts: ModelReport, price: RamPrice) -> Table:
    """Plans of the model of `facts` for budgets of RAM: `price` is that of the one which was built."""
    built = RamPoint(price.ram, price.added_time)
    points = {*price.curve, RamPoint(price.unlimited, 0.0), built}
    lines = []
    for point in sorted(points, key=lambda p: (-p.ram, p.added_time)):
        remark = "without a budget" if point.ram == price.unlimited else ""
        if point == built:
            remark = f"{remark}; this plan" if remark else "this plan"
            remark += f", {1 + price.measured:.2f} as measured" if price.measured is not None else ""
        lines.append(Line((point.ram, f"{1 + point.added_time:.2f}", remark)))
    return Table(
        "ram-price",
        f"Time over memory: {facts.name}",
        "Plans for budgets of RAM (--ram), without static data. Time is that of a training step beside the plan "
        "without one: by estimate, and as measured on the machine that built the library, on one thread (in files with "
        "--time)." + (" The last one is the smallest plan." if price.curve else ""),
        ("RAM", "Time", "Remark "),
        tuple(lines),
    )


def model_tensors(facts: ModelReport, limit: int | None = None) -> Table:
    """Bytes of the model by tensor, then by element type. With `limit`, the smaller tensors are added up in one row."""
    total = sum(t.bytes for t in facts.tensors)
    ordered = sorted(facts.tensors, key=lambda t: -t.bytes)
    shown = ordered if limit is None or len(ordered) <= limit else ordered[: limit - 1]
    lines = [
        Line(
            (
                t.name,
                t.type,
                "x".join(map(str, t.shape)) or "scalar",
                _USES[t.use],
                t.bytes,
                percent(t.bytes, total),
            )
        )
        for t in shown
    ]
    if rest := ordered[len(shown) :]:
        size = sum(t.bytes for t in rest)
        lines.append(Line((f"{len(rest)} smaller ones", "", "", "", size, percent(size, total))))
    for kind in sorted({t.type for t in ordered}):
        each = [t.bytes for t in ordered if t.type == kind]
        counted = f"{len(each):,} tensors" if len(each) > 1 else "1 tensor"
        lines.append(Line((f"All of {kind}", kind, counted, "", sum(each), percent(sum(each), total)), "sum"))
    constants = sum(t.bytes for t in ordered if t.use == "constant")
    beside = facts.checkpoint_bytes - (total - constants)
    lines.append(Line(("Checkpoint beside them", "", "", "", beside, "")))
    return Table(
        "tensors",
        "Model by tensor and type",
        "Bytes in the checkpoint that the device starts from"
        + (", and of quantized weights, which the plan holds." if constants else "."),
        ("Tensor ", "Type ", "Shape ", "Use ", "Bytes", "Of tensors"),
        tuple(lines),
    )


_USES = {
    "parameter": "trained",
    "buffer": "running statistics",
    "frozen": "read only",
    "constant": "quantized",
    "unused": "not used",
}


def _when(arena: Arena) -> str:
    return f"Live tensors at the peak of {arena.graph}: step {arena.step}, node {arena.node}."
