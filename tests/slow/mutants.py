"""Mutation testing: tests must notice every mutation of runtime, kernels, planner, passes, proof, checkpoint, report.

    python tests/slow/mutants.py [--only AREA] [--jobs N] [--again] [--list] [--check] [--report] [--seed TEXT]

Mutations are the written ones of tests/slow/mutations/*.toml and those that mutations/generate.py makes of operators,
a fixed choice for each file of mutations/areas.toml. Each is applied to a private copy of the tree, where the tests of
its file run until the first failure. A mutation that does not compile is replaced by another. Results are kept as lines
of JSON, so that a run goes on where it was stopped; the report is written to reports/baseline/mutants.md. Exit code 1
when a mutation survives that mutations/equivalent.toml does not explain, and when tests fail without a mutation: those
are named at the end, and only their mutations are left out.

Another seed makes another choice, without the written mutations: to look for what no test holds yet. Its survivors are
printed, and the report stays as it is.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = HERE / "mutations"
REPORT = ROOT / "reports/baseline/mutants.md"
sys.path.insert(0, str(DATA))

from copies import Copy, copy_tree  # noqa: E402
from generate import Mutation, candidates, chosen, mutation  # noqa: E402
from summary import markdown  # noqa: E402

AREAS = ("runtime", "checkpoint", "kernels", "planner", "passes", "proof", "report")
SEED = "1"
source = ROOT  # the tree that is mutated: while tests run, a copy that nobody edits


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text("utf-8"))


@cache
def located(test: str) -> str:
    """`test_x.py::name` by the path of test_x.py, wherever it is."""
    name, _, rest = test.partition("::")
    found = [p for p in (source / "tests").rglob(name) if "slow" not in p.parts]
    if len(found) != 1:
        raise SystemExit(f"{test}: {len(found)} files of that name in tests/. Correct tests/slow/mutations/.")
    return str(found[0].relative_to(source)) + ("::" + rest if rest else "")


@cache
def of_operators(file: str) -> list[str]:
    """The cases of the operators that a kernel source serves."""
    from minbuild.ops import registry

    operators, stem = registry(), Path(file).stem
    functions = {f.function for f in operators.functions.values() if operators.stems[f.function] == stem}
    names = [
        op.key.lstrip(":")
        for op in operators.ops.values()
        if op.cases and op.reference and functions & {k.function for k in op.kernels}
    ]
    made = [f"test_operators.py::test_operator_computes_its_reference[{n}-float]" for n in names]
    return made or ["test_operators.py"]


class Area:
    """The files of one area, how many mutations each gets, and the tests that concern it."""

    def __init__(self, name: str, entry: dict[str, Any]) -> None:
        self.name, self.groups = name, entry["files"]

    def files(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        for group in self.groups:
            for pattern in group["paths"]:
                paths = sorted(p for p in source.glob(pattern) if p.name != "__init__.py")
                if not paths:
                    raise SystemExit(f"{pattern}: no such file. Correct tests/slow/mutations/areas.toml.")
                for path in paths:
                    yield str(path.relative_to(source)), group["count"], tuple(group["tests"])

    def tests_of(self, file: str) -> tuple[str, ...]:
        return next((tests for name, _, tests in self.files() if name == file), ())


def areas() -> dict[str, Area]:
    stored = toml("areas.toml")
    return {name: Area(name, stored[name]) for name in AREAS}


def written(area: str) -> tuple[list[Mutation], list[str]]:
    """The mutations of a table, and what is wrong with it: text that is not there exactly once."""
    made, stale = [], []
    for entry in toml(f"{area}.toml").get("mutation", ()):
        file, old = entry["file"], entry["old"]
        data = (source / file).read_bytes() if (source / file).is_file() else b""
        count = data.count(old.encode())
        if count != 1:
            stale.append(f"{area}.toml: {file}: {count} times: {old!r}")
            continue
        start = data.index(old.encode())
        tests = tuple(entry.get("tests", ()))
        made.append(
            mutation(
                file,
                data,
                start,
                start + len(old.encode()),
                entry["new"],
                "written",
                tests=tests,
                breaks=entry["breaks"],
            )
        )
    return made, stale


@cache
def possible(file: str) -> tuple[Mutation, ...]:
    return tuple(candidates(file, source / file))


@dataclass(frozen=True)
class Choice:
    """The seed of the mutations of operators, and how many times as many as areas.toml says each file gets."""

    seed: str = SEED
    times: int = 1

    @property
    def recorded(self) -> bool:
        return self == Choice()


def wanted(area: Area, invalid: set[str], choice: Choice) -> list[Mutation]:
    """All mutations of an area, without those known not to compile."""
    found = [m for m in written(area.name)[0] if m.id not in invalid] if choice.recorded else []
    for file, count, _ in area.files():
        found += chosen((m for m in possible(file) if m.id not in invalid), count * choice.times, choice.seed)
    return list({m.id: m for m in found}.values())


class Results:
    """Lines of JSON, one a mutation; the last of an id holds."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.is_file() else []
        self.by_id: dict[str, dict[str, Any]] = {r["id"]: r for r in map(json.loads, lines)}

    def add(self, area: str, each: Mutation, outcome: dict[str, Any]) -> None:
        record = {
            "id": each.id,
            "area": area,
            "file": each.file,
            "line": each.line,
            "kind": each.kind,
            "was": each.was,
        }
        record |= {"becomes": each.becomes, "breaks": each.breaks, **outcome}
        with self.lock:
            self.by_id[each.id] = record
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def invalid(self) -> set[str]:
        return {i for i, r in self.by_id.items() if r["status"] == "invalid"}


def tests_for(area: Area, each: Mutation) -> list[str]:
    named = list(each.tests) or list(area.tests_of(each.file))
    flat = [t for name in named for t in (of_operators(each.file) if name == "operators" else [name])]
    return [located(t) for t in dict.fromkeys(flat)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="an area, a pattern of files, or an id")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run survivors and broken ones again")
    parser.add_argument("--list", action="store_true", help="print the mutations and run none")
    parser.add_argument(
        "--check", action="store_true", help="only see that every written mutation still applies"
    )
    parser.add_argument("--report", action="store_true", help="only write the report")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no mutation after so long")
    parser.add_argument("--seed", default=SEED, help="of another choice of mutations, which is not recorded")
    parser.add_argument("--times", type=int, default=1, help="as many mutations of operators; not recorded")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "minbuild-mutants")
    chosen_options = parser.parse_args()
    return work(chosen_options)


def selected(options: argparse.Namespace, area: str, each: Mutation) -> bool:
    return not options.only or any(
        x in (area, each.id) or fnmatch.fnmatch(each.file, x) for x in options.only
    )


def work(options: argparse.Namespace) -> int:
    stale = [text for area in AREAS for text in written(area)[1]]
    if stale:
        print("\n".join(["Stale: the text of a written mutation must be in its file exactly once.", *stale]))
        return 1
    options.work.mkdir(parents=True, exist_ok=True)
    results, known = Results(options.work / "results.jsonl"), areas()
    choice = Choice(options.seed, options.times)
    if options.check:
        print(f"{sum(len(written(a)[0]) for a in AREAS)} written mutations apply")
        for area in known.values():
            for each in wanted(area, set(), choice):
                tests_for(area, each)
        return 0
    if options.list:
        for name, area in known.items():
            for each in wanted(area, results.invalid(), choice):
                if selected(options, name, each):
                    print(
                        f"{each.id} {name} {each.file}:{each.line} {each.kind}: {each.was}  =>  {each.becomes}"
                    )
        return 0
    failures = [] if options.report else run_all(options, known, results, choice)
    code = report(options, known, Results(results.path), choice)
    for text in failures:
        print(text, file=sys.stderr)
    return int(bool(failures)) or code


def run_all(
    options: argparse.Namespace, known: dict[str, Area], results: Results, choice: Choice
) -> list[str]:
    """Until no mutation is left without a result; one that does not compile makes room for another. Returns what is
    wrong with tests that fail without a mutation, whose mutations are not run."""
    global source
    source = options.work / f"tree-{os.getpid()}"  # several runs may share the results
    copy_tree(source)
    began, lock = time.monotonic(), threading.Lock()
    claimed: set[str] = set()
    baseline: dict[tuple[str, ...], float] = {}

    queue: list[tuple[Area, Mutation]] = []

    def next_one() -> tuple[Area, Mutation] | None:
        with lock:
            while True:
                if not queue:  # at first, and after all once more: for those in the place of invalid ones
                    for name, area in known.items():
                        for each in wanted(area, results.invalid(), choice):
                            done = results.by_id.get(each.id)
                            again = options.again and done and done["status"] in ("survived", "broken")
                            if (
                                each.id not in claimed
                                and selected(options, name, each)
                                and (not done or again)
                            ):
                                queue.append((area, each))
                    if not queue:
                        return None
                area, each = queue.pop(0)
                if each.id not in claimed:
                    claimed.add(each.id)
                    return area, each

    failures: dict[tuple[str, ...], str] = {}  # of tests that fail without a mutation: theirs are left out

    def one_copy(number: int) -> None:
        copy = Copy(source, options.work / f"copy-{os.getpid()}-{number}", options.work / "cache")
        try:
            while time.monotonic() - began < 60 * options.minutes and (found := next_one()):
                area, each = found
                tests = tests_for(area, each)
                key = ("py" if each.file.endswith(".py") else "cc", *tests)
                if key in failures:
                    continue
                if key not in baseline:
                    done = copy.run(key[0], tests, 900)  # which also fills the caches
                    if done["code"] != 0:
                        how = "fails" if done["code"] is not None else "takes too long"
                        failures[key] = f"Without a mutation, {' '.join(tests)} {how}:\n{done['log'][-3000:]}"
                        print(f"   without a mutation {how}: {' '.join(tests)}", flush=True)
                        continue
                    baseline[key] = done["seconds"]
                    spent = f"{done['seconds']:.1f} s ({done['cpu']:.1f} of a processor)"
                    print(f"   {spent} without a mutation: {' '.join(tests)}", flush=True)
                outcome = copy.try_mutation(each, tests, 30 + 6 * baseline[key])
                results.add(area.name, each, outcome)
                change, place = each.becomes or f"(dropped) {each.was}", f"{each.file}:{each.line}"
                spent = f"{outcome['seconds']:6.1f} s {outcome['cpu']:5.1f}"
                print(
                    f"{outcome['status']:8} {spent} {each.id} {place} {change}  [{outcome['by']}]", flush=True
                )
        finally:
            copy.close()

    threads = [threading.Thread(target=one_copy, args=(n,)) for n in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.rmtree(source)
    source = ROOT
    return list(failures.values())


def report(options: argparse.Namespace, known: dict[str, Area], results: Results, choice: Choice) -> int:
    reasons = {e["id"]: e for e in toml("equivalent.toml").get("equivalent", ())}
    rows = []
    for name, area in known.items():
        for each in wanted(area, results.invalid(), choice):
            if not (choice.recorded or selected(options, name, each)):
                continue
            done = results.by_id.get(each.id, {"status": "not run", "by": ""})
            status = "equivalent" if done["status"] == "survived" and each.id in reasons else done["status"]
            rows.append((name, each, status, done["by"], reasons.get(each.id, {}).get("reason", "")))
    counts = {s: sum(r[2] == s for r in rows) for s in sorted({r[2] for r in rows})}
    print(f"{len(rows)} mutations: {counts}")
    if choice.recorded:
        REPORT.write_text(markdown(rows, len(results.invalid())), "utf-8")
        print(f"written to {REPORT.relative_to(ROOT)}")
    else:
        for _, each, status, _, _ in rows:
            if status in ("survived", "broken"):
                print(
                    f"{status} {each.id} {each.file}:{each.line} {each.was}  =>  {each.becomes or '(dropped)'}"
                )
    return int(any(status in ("survived", "broken", "not run") for _, _, status, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
