"""Budgets: how large a trainer may be, what of it is used, and what grew when it is too much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minbuild.analysis.size_diff import compare
from minbuild.analysis.size_history import OPERATOR
from minbuild.errors import BadInput
from minbuild.ir.size_record import SizeRecord, TargetFigures
from minbuild.ops import registry
from minbuild.options.byte_sizes import parse_size
from minbuild.options.did_you_mean import did_you_mean
from minbuild.toolchain import parse_target

WARN_AT = 0.9  # of a budget
LIMITS = {
    "flash": "allocated bytes of the library",
    "file": "bytes of the library's file",
    "download": "bytes of the library after gzip -9",
    "ram": "bytes of static data and of a session: the largest arena, what persists, tables and stacks of threads",
    "arena": "bytes of the largest arena",
    "stack": "bytes of the peak stack, as measured in a run",
    "growth": "bytes of flash beyond those of the baseline",
}


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes: by name (a key of those above), by operator, and of single targets instead of those."""

    limits: Mapping[str, int] = field(default_factory=dict)
    operators: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, Budgets] = field(default_factory=dict)

    def of(self, target: str) -> Budgets:
        """The limits of one target."""
        own = self.targets.get(target)
        if own is None:
            return self
        return Budgets({**self.limits, **own.limits}, {**self.operators, **own.operators})

    @property
    def bounds_growth(self) -> bool:
        """True if a limit needs a baseline to compare with."""
        return any("growth" in each.limits for each in (self, *self.targets.values()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A budget that is nearly used up, or exceeded (`over`), in one sentence."""

    over: bool
    text: str


def parse_budgets(table: Any, path: str) -> Budgets:
    """The table `budgets` of a settings file. Raises BadInput."""
    return _parse(table, f"{path}: budgets", nested=True)


def _parse(table: Any, where: str, nested: bool) -> Budgets:
    if not isinstance(table, dict):
        raise BadInput(f"{where}: is no table. Write [tool.minbuild.budgets], or [budgets] in minbuild.toml.")
    limits: dict[str, int] = {}
    operators: dict[str, int] = {}
    targets: dict[str, Budgets] = {}
    for name, value in table.items():
        if name in LIMITS:
            limits[name] = _bytes(value, f"{where}.{name}")
        elif name == "operators" and isinstance(value, dict):
            operators |= {op: _bytes(size, f"{where}.operators.{op}") for op, size in value.items()}
        elif name == "targets" and nested and isinstance(value, dict):
            for target, each in value.items():
                own = f"{where}.targets.{target}"
                targets[_target_name(target, own)] = _parse(each, own, nested=False)
        else:
            known = ", ".join((*LIMITS, "operators", *(("targets",) if nested else ())))
            raise BadInput(f"{where}: nothing is called '{name}'. Choose from {known}.")
    return Budgets(limits, operators, targets)


def _target_name(name: str, where: str) -> str:
    try:
        return str(parse_target(name))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _bytes(value: Any, where: str) -> int:
    """A number of bytes, or text such as "64 KiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    size = parse_size(value) if isinstance(value, str) else None
    if size is None:
        raise BadInput(f'{where}: {value!r} is no size. Write a number of bytes, or text such as "64 KiB".')
    return size


# ------------------------------------------------------------------------------------------------- judging


def judge(budgets: Budgets, new: SizeRecord, old: SizeRecord | None) -> tuple[Verdict, ...]:
    """Everything in the record `new` that is at 90 % of `budgets` or above, target by target. `old` is the baseline;
    without one there is no growth. Budgets of targets that are not there wait for them. Raises BadInput where a
    figure is missing."""
    return tuple(
        verdict for target in new.targets for verdict in _judge(budgets.of(target.target), target, new, old)
    )


def _judge(
    budgets: Budgets, target: TargetFigures, new: SizeRecord, old: SizeRecord | None
) -> Iterator[Verdict]:
    before = next((t for t in old.targets if t.target == target.target), None) if old else None
    used = {
        "flash": target.loaded,
        "file": target.file,
        "download": target.download,
        "ram": target.ram,
        "arena": new.arena,
        "stack": target.stack or 0,
        "growth": target.loaded - before.loaded if before else 0,
    }
    if "stack" in budgets.limits and target.stack is None:
        raise BadInput(
            f"budgets.stack: there is no figure for {target.target}, whose programs were not run here. Install its "
            "emulator, or give this budget to other targets only."
        )
    for name, limit in budgets.limits.items():
        if name == "stack":
            reason = _stack_reason(target, before)
        elif name in ("ram", "arena"):
            reason = _memory_reason(new, old, name, target)
        else:
            reason = _code_reason(target, new, old)
        yield from _verdict(f"{target.target}: {name}", used[name], limit, reason)
    for name, limit in budgets.operators.items():
        found = [
            e for e in target.entries if e.kind == OPERATOR and name in (e.name, *e.users, *_plain(e.users))
        ]
        if not found:
            yield from _unknown(f"{target.target}: operator {name}", name)
        earlier = {e.name: e.bytes for e in before.entries if e.kind == OPERATOR} if before else {}
        stems, code = ", ".join(e.name for e in found), " and ".join(f"{e.name}.cc" for e in found)
        grown = sum(e.bytes - earlier.get(e.name, 0) for e in found)
        reason = f"{stems} grew by {grown:,} bytes" if before and grown > 0 else f"its code is {code}"
        yield from _verdict(f"{target.target}: operator {name}", sum(e.bytes for e in found), limit, reason)


def _unknown(what: str, name: str) -> Iterator[Verdict]:
    """A budget that nothing can exceed, for nothing is called so."""
    operators = registry()
    known = {*operators.stems.values(), *(n for op in operators.ops.values() for n in (op.title, op.name))}
    if name not in known:
        yield Verdict(
            False, f"{what}: nothing is called so, the budget is for nothing.{did_you_mean(name, known)}"
        )


def _plain(users: Sequence[str]) -> tuple[str, ...]:
    """Operators without their domain."""
    return tuple(user.rpartition(":")[2] for user in users)


def _verdict(what: str, used: int, limit: int, reason: str) -> Iterator[Verdict]:
    if used > limit:
        text = f"{what}: {used:,} bytes, {used - limit:,} over the budget of {limit:,}; {reason}."
        yield Verdict(True, text)
    elif used >= WARN_AT * limit and used > 0:
        share = f"{100 * used / limit:.0f} %"
        yield Verdict(False, f"{what}: {used:,} bytes, {share} of the budget of {limit:,}; {reason}.")


def _code_reason(target: TargetFigures, new: SizeRecord, old: SizeRecord | None) -> str:
    """The rows that grew, or the largest ones where there is no baseline."""
    if old is not None:
        grown = [
            f"{row.name} by {row.delta:,}"
            for each in compare(old, new).targets
            if each.target == target.target
            for row in each.rows
            if row.delta > 0
        ]
        return f"grew: {', '.join(grown[:3])}" if grown else "nothing grew since the baseline"
    largest = sorted(target.entries, key=lambda e: (-e.bytes, e.name))[:3]
    return "largest: " + ", ".join(f"{e.name} {e.bytes:,}" for e in largest)


def _stack_reason(target: TargetFigures, before: TargetFigures | None) -> str:
    grown = (target.stack or 0) - (before.stack or 0) if before and before.stack else 0
    return f"grew by {grown:,} bytes" if grown > 0 else "the report says which call it is in"


def _memory_reason(new: SizeRecord, old: SizeRecord | None, name: str, target: TargetFigures) -> str:
    if old is not None:
        grown = [f"{c.name.lower()} by {c.delta:,}" for c in compare(old, new).memory if c.delta > 0]
        return f"grew: {', '.join(grown[:3])}" if grown else "nothing grew since the baseline"
    parts = {f"arena of {graph}": size for graph, size in new.arenas.items()}
    if name == "ram":
        parts |= {**new.persistent, "session": target.session}
    largest = sorted(parts.items(), key=lambda part: -part[1])[:2]
    sizes = ", ".join(f"{symbol} {size}" for symbol, size in new.sizes.items())
    return f"largest: {', '.join(f'{n} {s:,}' for n, s in largest)}" + (f" at {sizes}" if sizes else "")
