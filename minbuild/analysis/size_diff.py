"""The difference of two size records: causes first, then memory and bytes by target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minbuild.ir.size_diff import SizeChange, SizeDiff, TargetSizeDiff
from minbuild.ir.size_record import SizeRecord, TargetFigures


def compare(old: SizeRecord, new: SizeRecord) -> SizeDiff:
    """The changes from `old` to `new`."""
    before, after = {t.target: t for t in old.targets}, {t.target: t for t in new.targets}
    both = [(before[name], after[name]) for name in after if name in before]
    targets = tuple(d for a, b in both if (d := _target(a, b)).figures or d.rows)
    memory = _changes("memory", _memory(old), _memory(new))
    causes = tuple(_causes(old, new, both))
    if not causes and (targets or memory):
        causes = (
            "Model, sizes, build options, compiler, flags and version are the same: minbuild's own sources changed",
        )
    return SizeDiff(
        new.model,
        causes=causes,
        memory=memory,
        targets=targets,
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
    )


def _causes(
    old: SizeRecord, new: SizeRecord, both: Sequence[tuple[TargetFigures, TargetFigures]]
) -> Iterator[str]:
    """The possible causes of a change, most likely first."""
    files = sorted(n for n in {**old.files, **new.files} if old.files.get(n) != new.files.get(n))
    if files or old.model != new.model:
        name = f" from {old.model} to {new.model}" if old.model != new.model else ""
        yield f"The model changed{name}" + (f": {', '.join(files)}" if files else "")
    if old.sizes != new.sizes:
        yield f"The sizes changed: {_sizes(old.sizes)} → {_sizes(new.sizes)}"
    if old.minbuild != new.minbuild:
        yield f"minbuild changed: {old.minbuild} → {new.minbuild}"
    chosen = _build_options(old.build_options, new.build_options)
    if chosen:
        yield f"The build options changed: {', '.join(chosen)}"
    compilers: dict[str, list[str]] = {}
    options: dict[str, list[str]] = {}
    for a, b in both:
        if a.toolchain != b.toolchain:
            compilers.setdefault(f"{a.toolchain} → {b.toolchain}", []).append(b.target)
        if a.flags != b.flags:
            words = [f"with {f}" for f in b.flags if f not in a.flags] + [
                f"without {f}" for f in a.flags if f not in b.flags
            ]
            options.setdefault(", ".join(words) or "their order", []).append(b.target)
    for what, found in (("compiler", compilers), ("flags", options)):
        for text, names in found.items():
            where = "" if len(names) == len(both) else f" for {', '.join(names)}"
            yield f"The {what} changed{where}: {text}"


def _build_options(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The build options that differ, where both records have them."""
    both = [name for name in new if name in old and new[name] != old[name]]
    return [f"{name} {old[name] or 'none'} → {new[name] or 'none'}" for name in both]


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "all fixed"


def _target(old: TargetFigures, new: TargetFigures) -> TargetSizeDiff:
    known = None not in (old.stack, new.stack)  # one that was not measured has not changed

    def figures(t: TargetFigures) -> dict[str, int]:
        measured = {"Stack": t.stack} if t.stack is not None and known else {}
        return {"Flash": t.loaded, "File": t.file, "Download": t.download, "RAM": t.ram, **measured}

    def rows(t: TargetFigures) -> dict[tuple[str, str], int]:
        return {(e.kind, e.name): e.bytes for e in t.entries}

    before, after = rows(old), rows(new)
    changed = (SizeChange(*key, before.get(key, 0), after.get(key, 0)) for key in before | after)
    ordered = sorted((c for c in changed if c.delta), key=lambda c: (-abs(c.delta), c.kind, c.name))
    return TargetSizeDiff(new.target, _changes("total", figures(old), figures(new)), tuple(ordered))


def _memory(snapshot: SizeRecord) -> dict[str, int]:
    arenas = {f"Arena: {graph}": size for graph, size in snapshot.arenas.items()}
    parts = {f"Persistent: {name}": size for name, size in snapshot.persistent.items()}
    return {**arenas, **parts, "Plan file": snapshot.plan}


def _changes(kind: str, old: Mapping[str, int], new: Mapping[str, int]) -> tuple[SizeChange, ...]:
    found = (SizeChange(kind, name, old.get(name, 0), new.get(name, 0)) for name in {**old, **new})
    return tuple(change for change in found if change.delta)
