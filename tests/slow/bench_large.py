"""Step times and memory at real size, side by side with ONNX Runtime and PyTorch: reports/baseline/large.md.

    python tests/slow/bench_large.py [--torch PYTHON] [--ort PYTHON] [--work FOLDER] [--batches 1,8] [--threads 1,2]
                                     [--seconds 10] [--no-memory] [--avx2] [--cores] [--dry] [--resume] [NAME...]

The networks are those of large_nets.py, with random weights; a NAME is one of them, in quotes, or the beginning of
one. A NAME such as torchvision:densenet121 is a model of another library, which large_torchvision.py fetches. Rows of
such networks have a table of their own: the kernels were not tuned for them. Where ONNX Runtime's tools cannot make
artifacts of one, or ONNX Runtime cannot train them, its times stay empty and `minbuild artifacts` serves.

PYTHON has torch, onnx and onnxscript (--torch), onnxruntime-training-cpu 1.19.2 (--ort); environments are made for
the purpose when none are given. PyTorch exports a network, ONNX Runtime's tools make its artifacts, and minbuild builds
a trainer of them. Then each of the three trains in a process of its own, in turns of about a second, on the
same batch: a training step, AdamW (PyTorch's fused one), and the reset of gradients. Their first losses have to agree.
Frozen weights, which minbuild leaves in the checkpoint's file, are read from storage at first.

--avx2 measures what processors without AVX-512 would do: a library built with `--avx512 off`, beside PyTorch by the
switches of its libraries. ONNX Runtime has no such switch and stays away. These rows have a table of their own.

--cores measures what the second core gives: PyTorch and minbuild with one thread and with two, and two trainers of
minbuild at once with one thread each, all in turns of one run and by the wall clock. These rows have a table of their
own as well.

With one thread, a time is that of the processor in the best turn, which other work on the machine
changes little; with more it is that of the wall clock. Memory is what training adds to a process at most, on one
thread. Rows of the table that are not measured stay as they are; --dry leaves the report alone.

It runs unattended: a row that fails is named at the end and the others go on, and the report is written after each.
--resume, with --work, skips rows that were measured there of the very same trainer, as after an interruption. The cores
that other processes used meanwhile stand beside a row where they were more than a tenth of one: measure those again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minbuild.options.build_options import BuildOptions
    from minbuild.options.plan_options import PlanOptions
    from minbuild.planning.compiled_model import CompiledModel

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "golden"), str(ROOT)]
from minbuild.errors import MinbuildError  # noqa: E402

REPORT = ROOT / "reports" / "baseline"
WORKER = str(HERE.with_name("large_worker.py"))
TORCH_PACKAGES = ("torch", "onnx", "onnxscript", "numpy")
NAMES = ("ResNet-18", "ResNet-50", "ViT-Tiny", "BERT 4x256", "BERT-base", "DistilBERT head", "LoRA BERT-base")
NAMES += ("LSTM 2x1024", "MLP 10M", "MobileNetV2", "EfficientNet-B0", "DS-CNN")
WHO = ("ort", "torch", "ours")
CORES = tuple((who, threads) for who in ("torch", "ours") for threads in (1, 2))
PAIR = "ours_pair"  # two trainers with one thread each
TURN, FEWEST = 1.0, 7  # seconds of a turn, and turns of each: single ones vary by 5 %
AGREE = 2e-3  # relative difference of first losses
AVX2 = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
QUIET = 0.1  # cores that other processes may use


class Failed(Exception):
    """A row could not be measured."""


def is_foreign(name: str) -> bool:
    """True for a network that another library defines."""
    return ":" in name


def _chosen(names: Sequence[str]) -> list[str]:
    """The networks that are asked for."""
    own = [n for n in NAMES if not names or any(n.startswith(name) for name in names)]
    return own + [name for name in names if is_foreign(name)]


def main() -> int:
    options = _options()
    wrong = [n for n in options.names if not _chosen([n])]
    if wrong:
        sys.exit(f"{wrong[0]}: no such network; there are {', '.join(NAMES)}.")
    with tempfile.TemporaryDirectory(prefix="minbuild-large-") as scratch:
        work = options.work or Path(scratch)
        pythons = {
            "torch": options.torch or _torch(work),
            "ort": options.ort or _ort(work),
            "ours": sys.executable,
        }
        rows, failures = [], []
        for name in _chosen(options.names):
            folder = work / name.replace(":", "-")
            try:
                _prepare(folder, name, pythons, options)
            except (Failed, MinbuildError, OSError) as failure:
                failures.append(f"{name}: {failure}")
                continue
            for threads in [2] if options.cores else options.threads:
                for batch in options.batches:
                    try:
                        rows.append(_row(folder, name, batch, threads, pythons, options))
                    except (Failed, OSError) as failure:
                        failures.append(f"{name}, batch {batch}, {threads} threads: {failure}")
    table = _core_table if options.cores else _table
    print(table(rows) if rows else "No row was measured.")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    behind = any(_falls_behind(row) if options.cores else _peer(row) < row["ours"] for row in rows)
    return 1 if failures or behind else 0


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)

    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.split(",")]

    parser.add_argument("--torch", type=Path)
    parser.add_argument("--ort", type=Path)
    parser.add_argument("--work", type=Path, help="keep what is exported here")
    parser.add_argument("--batches", type=numbers, default=[1, 8])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=10, help="of measuring a row, for each of the three")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--avx2", action="store_true", help="as without AVX-512, beside PyTorch")
    parser.add_argument("--cores", action="store_true", help="one thread and two in one run, beside PyTorch")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--resume", action="store_true", help="skip rows that were measured in --work")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.resume and not options.work:
        parser.error("--resume needs --work, where the rows are kept")
    if options.avx2 and options.cores:
        parser.error("--avx2 and --cores measure rows of their own; run one after the other")
    if options.avx2:
        os.environ.update(AVX2)
    return options


def _torch(work: Path) -> Path:
    folder = work / "torch-environment"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *TORCH_PACKAGES], check=True)
    return python


def _ort(work: Path) -> Path:
    from make_artifacts import prepare  # an environment that the golden sets are made with serves here too

    return Path(prepare(work / "ort-environment", "python3.11"))


def make_artifacts(folder: Path, name: str, pythons: dict[str, Path], batches: Sequence[int]) -> None:
    """Artifacts of network `name` by ONNX Runtime where `folder` has none yet for inputs of the sizes `batches`;
    `pythons` are the environments. minbuild makes those of another library's network that ONNX Runtime does not."""
    kept = ("training_model.onnx", *(f"batch_{size}.npz" for size in batches))
    if all((folder / each).exists() for each in kept):
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "no_ort.txt").unlink(missing_ok=True)
    _run([pythons["torch"], WORKER, "export", folder, name, ",".join(map(str, batches))], folder)
    try:
        _run([pythons["ort"], WORKER, "artifacts", folder], folder)
    except Failed as failure:
        if not is_foreign(name):
            raise
        (folder / "no_ort.txt").write_text(str(failure))
        loss = ("--loss", (folder / "loss.txt").read_text())
        _run([sys.executable, "-m", "minbuild", "artifacts", "model.onnx", "--out", ".", *loss], folder)


def _run(command: Sequence[object], folder: Path) -> None:
    given = [str(part) for part in command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(given, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(given)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


def _prepare(folder: Path, name: str, pythons: dict[str, Path], options: argparse.Namespace) -> None:
    """Artifacts, and a trainer of them as the kernels are now."""
    make_artifacts(folder, name, pythons, options.batches)
    from minbuild.options.build_options import AUTO, OFF, ON, BuildOptions
    from minbuild.options.plan_options import PlanOptions

    built_for = BuildOptions(threads=AUTO, avx512=OFF if options.avx2 else ON)
    model, shared = built(folder, built_for, PlanOptions(checks_loss=True, threads=AUTO))
    plan = model.plan
    (folder / "trainer.so").write_bytes(shared)
    (folder / "trainer.plan").write_bytes(model.plan_bytes)
    about = {"inputs": [n for n, _ in plan.routines[0].inputs], "symbols": len(plan.symbols)}
    about["digest"] = hashlib.sha256(shared + model.plan_bytes).hexdigest()
    (folder / "about.json").write_text(json.dumps(about))


def built(folder: Path, options: BuildOptions, planned: PlanOptions) -> tuple[CompiledModel, bytes]:
    """A trainer of the artifacts in `folder` for this machine, with `options`: `planned` as they ask for, and its
    library."""
    from minbuild.codegen.library_builder import build_checked
    from minbuild.planning.compile import compile_model
    from minbuild.planning.kernel_selection import contents_of
    from minbuild.toolchain import find_toolchain, host_target

    model = compile_model(folder, {}, {}, options=planned)
    contents = contents_of([model], build_options=options)
    toolchain = find_toolchain(None, None, options)
    return model, build_checked(contents, model.registry, host_target(), toolchain).built.shared


def _row(folder: Path, name: str, batch: int, threads: int, pythons: dict[str, Path], options) -> dict:
    """A row, measured now, or before of the same trainer where that is asked for; printed and reported."""
    kept = folder / f"row_{batch}_{threads}{_kind(options)}.json"
    digest = json.loads((folder / "about.json").read_text())["digest"]
    if options.resume and kept.exists() and (found := json.loads(kept.read_text()))["digest"] == digest:
        row = found["row"]
    else:
        measured = _cores if options.cores else _measured
        row = measured(folder, name, batch, threads, pythons, options)
        kept.write_text(json.dumps({"digest": digest, "row": row}))
    print((_core_line if options.cores else _line)(row) + _beside(row), file=sys.stderr, flush=True)
    if not options.dry:
        _write([row])
    return row


def _kind(options: argparse.Namespace) -> str:
    """The suffix of files that keep rows of a table of their own."""
    return "_avx2" if options.avx2 else "_cores" if options.cores else ""


class Participant:
    """A process that trains when asked."""

    def __init__(self, who: str, python: Path, folder: Path, *given: object) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(given[-1]), "PYTHONPATH": str(ROOT)}
        command = [str(python), WORKER, who, str(folder), *map(str, given)]
        pipe = subprocess.PIPE
        log = (folder / f"{who}{given[-1]}.log").open("w")
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
        )
        self.log = Path(log.name)
        self.loss = float(self._answer())

    def _answer(self):
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end()
            raise Failed(f"{' '.join(map(str, self.process.args))}\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def begin(self, count: int) -> None:
        """Has it begin with `count` steps."""
        assert self.process.stdin is not None
        print(count, file=self.process.stdin, flush=True)

    def ended(self, count: int) -> tuple[float, float]:
        """Seconds a step of those, once they are done, by the wall clock and by processors."""
        wall, used = self._answer()
        return wall / count, used / count

    def steps(self, count: int) -> tuple[float, float]:
        """Seconds a step, by the wall clock and by processors."""
        self.begin(count)
        return self.ended(count)

    def memory(self) -> int:
        """Bytes; ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        found = self._answer() * 1024
        self.process.wait()
        return int(found)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def used(self) -> float:
        """Seconds of processors so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pair:
    """Two processes that train at the same time."""

    def __init__(self, *both: Participant) -> None:
        self.both = both

    def steps(self, count: int) -> tuple[float, float]:
        """Seconds a step of the slower one, by the wall clock and by processors."""
        for each in self.both:
            each.begin(count)
        return max(each.ended(count) for each in self.both)

    def used(self) -> float:
        """Seconds of processors so far, besides those of the first, which takes turns of its own."""
        return self.both[1].used()

    def end(self) -> None:
        for each in self.both:
            each.end()


def _busy() -> float:
    """Seconds of processors that all processes have used since the machine started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _who(folder: Path, options: argparse.Namespace) -> list[str]:
    """The participants that can train what is in `folder`."""
    stays_away = options.avx2 or (folder / "no_ort.txt").exists()
    return [who for who in WHO if who != "ort" or not stays_away]


def _measured(folder: Path, name: str, batch: int, threads: int, pythons: dict[str, Path], options) -> dict:
    given = (name, batch, threads)
    row = {"net": name, "batch": batch, "threads": threads} | ({"avx2": True} if options.avx2 else {})
    if threads == 1 and not options.no_memory:  # one after the other: some are large
        for who in _who(folder, options):
            participant = Participant(who, pythons[who], folder, *given)
            participant.steps(2)
            row[f"{who}_memory"] = participant.memory()
    participants: dict[str, Participant] = {}
    try:
        for who in _who(folder, options):
            try:
                participants[who] = Participant(who, pythons[who], folder, *given)
            except Failed as failure:
                if who != "ort" or not is_foreign(name):
                    raise
                (folder / "no_ort.txt").write_text(str(failure))
        _check_losses({who: p.loss for who, p in participants.items()})
        row |= _raced(participants, threads, options.seconds)
    finally:
        for p in participants.values():
            p.end()
    return row


def _check_losses(losses: dict[str, float]) -> None:
    if not max(losses.values()) - min(losses.values()) <= AGREE * max(losses.values()):
        raise Failed(f"the first losses differ: {losses}")


def _cores(folder: Path, name: str, batch: int, _: int, pythons: dict[str, Path], options) -> dict:
    """A row of milliseconds by one thread, by two, and by one where two train at once."""
    participants: dict[str, Participant | Pair] = {}
    try:
        losses = {}
        for who, threads in CORES:
            made = Participant(who, pythons[who], folder, name, batch, threads)
            participants[f"{who}_{threads}"], losses[f"{who}_{threads}"] = made, made.loss
            if (who, threads) == ("ours", 1):
                other = Participant(who, pythons[who], folder, name, batch, threads)
                participants[PAIR] = Pair(made, other)
        _check_losses(losses)
        row = {"net": name, "batch": batch, "threads": 2, "cores": True}
        return row | _raced(participants, 2, options.seconds)
    finally:
        for p in participants.values():
            p.end()


def _raced(participants: Mapping[str, Participant | Pair], threads: int, seconds: float) -> dict[str, float]:
    """The best milliseconds of each in turns, and how many cores other processes used."""
    counts, best = {}, dict.fromkeys(participants, math.inf)
    for who, p in participants.items():
        counts[who] = max(1, round(TURN / p.steps(1)[0]))
    since, turns = time.perf_counter(), 0
    busy, own = _busy(), sum(p.used() for p in participants.values())
    while time.perf_counter() - since < seconds * len(participants) or turns < FEWEST:
        for who, p in participants.items():
            best[who] = min(best[who], p.steps(counts[who])[1 if threads == 1 else 0])
        turns += 1
    others = _busy() - busy - sum(p.used() for p in participants.values()) + own
    row = {who: 1000 * each for who, each in best.items()}
    return row | {"others": max(0.0, others / (time.perf_counter() - since))}


HEAD = ("net", "batch", "threads", "ORT ms", "torch ms", "minbuild ms", "/ORT", "/torch")
HEAD += ("MB: ORT", "torch", "minbuild")
PREFACE = """\
Networks of real size (`tests/slow/large_nets.py`), random weights, artifacts by ONNX Runtime 1.19.2, float32, the
default build: a training step with AdamW, beside ONNX Runtime and PyTorch in one run (`tests/slow/bench_large.py`).
With one thread times are those of the processor, else of the wall clock, in the best of the turns that the three took;
memory is what training adds to a process at most. Below 1, minbuild is faster.
"""
FOREIGN = """### Networks that the kernels were not tuned for

Models as other libraries define them, with random weights and nothing random in their training. ORT's columns are empty
where its tools cannot make artifacts of the model or it cannot train them.
"""
NARROW = """### Without AVX-512

Libraries built with `--avx512 off`, beside PyTorch held to AVX2 by the switches of its libraries (`--avx2`): what
processors without AVX-512 would do. ONNX Runtime has no such switch.
"""


SECOND_CORE = """### What the second core gives

The same step with one thread and with two, of PyTorch and of minbuild, all in turns of one run and by the wall clock
(`--cores`). "At once" is a step with one thread while a second trainer does the same on the other core: both together
do no more than this machine can, so that the bound is what two threads could gain at most. Where PyTorch gains more
than 2, its step with one thread is slow.
"""
CORE_HEAD = ("net", "batch", "torch ms, 1", "torch ms, 2", "gain")
CORE_HEAD += ("minbuild ms, 1", "at once", "minbuild ms, 2", "bound", "gain")


def _peer(row: dict) -> float:
    """Milliseconds of the faster of the others."""
    return min(row[who] for who in ("ort", "torch") if who in row)


def _line(row: dict) -> str:
    ratios = (f"{row['ours'] / row[who]:.2f}" if who in row else "" for who in ("ort", "torch"))
    memory = [f"{row[f'{who}_memory'] / 1e6:.0f}" if f"{who}_memory" in row else "" for who in WHO]
    times = (f"{row[who]:.{2 if row[who] < 100 else 0}f}" if who in row else "" for who in WHO)
    named = (row["net"], str(row["batch"]), str(row["threads"]))
    cells = (*named, *times, *ratios, *memory)
    return "| " + " | ".join(cells) + " |"


def _beside(row: dict) -> str:
    """A note on other work of the machine, "" where there was little."""
    others = row.get("others", 0)
    return f" other processes used {others:.1f} cores" if others > QUIET else ""


def _mean(rows: list[dict], who: str) -> str:
    """The geometric mean of minbuild's times beside those of `who`, of the rows that have them; "" if none has."""
    logs = [math.log(row["ours"] / row[who]) for row in rows if who in row]
    return f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else ""


def _gain(row: dict, who: str) -> float:
    """How many times as fast two threads are as one."""
    return row[f"{who}_1"] / row[f"{who}_2"]


def _falls_behind(row: dict) -> bool:
    """True if the second core gives PyTorch more, as far as the table shows."""
    return round(_gain(row, "torch"), 2) > round(_gain(row, "ours"), 2)


def _bound(row: dict) -> float:
    """How many times as much two trainers at once do as one alone."""
    return 2 * row["ours_1"] / row[PAIR]


def _core_line(row: dict) -> str:
    def times(*names: str) -> list[str]:
        return [f"{row[name]:.{2 if row[name] < 100 else 0}f}" for name in names]

    cells = [row["net"], str(row["batch"]), *times("torch_1", "torch_2"), f"{_gain(row, 'torch'):.2f}"]
    cells += [*times("ours_1", PAIR, "ours_2"), f"{_bound(row):.2f}", f"{_gain(row, 'ours'):.2f}"]
    return "| " + " | ".join(cells) + " |"


def _core_table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(CORE_HEAD) + " |", "|---|" + "--:|" * (len(CORE_HEAD) - 1)]
    lines += [*map(_core_line, rows), ""]
    ours, theirs = (geometric_mean(_gain(row, who) for row in rows) for who in ("ours", "torch"))
    bound = geometric_mean(map(_bound, rows))
    lines.append(
        f"Geometric mean: minbuild {ours:.2f} times as fast, of {bound:.2f} that are possible; PyTorch {theirs:.2f}."
    )
    for beyond, how in ((False, "PyTorch gains more"), (True, "PyTorch gains more than 2")):
        more = [row for row in rows if _falls_behind(row) and (round(_gain(row, "torch"), 2) > 2) == beyond]
        named = "; ".join(f"{row['net']}, batch {row['batch']}" for row in more)
        lines += [f"{how} in {named}."] * bool(more)
    return "\n".join(lines + _busy_rows(rows))


def _busy_rows(rows: list[dict]) -> list[str]:
    """A sentence on rows beside which the machine did something else, if there are some."""
    busy = [
        f"{row['net']}, batch {row['batch']}, threads {row['threads']} ({row['others']:.1f})"
        for row in rows
        if _beside(row)
    ]
    return [f"Cores that other processes used meanwhile: {'; '.join(busy)}."] * bool(busy)


def _table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1), *map(_line, rows), ""]
    for threads in sorted({row["threads"] for row in rows}):
        own = [row for row in rows if row["threads"] == threads]
        means = [(named, _mean(own, who)) for named, who in (("ONNX Runtime", "ort"), ("PyTorch", "torch"))]
        worst = max(own, key=lambda row: row["ours"] / _peer(row))
        lines.append(
            f"{threads} thread{'s' if threads > 1 else ''}: geometric mean "
            + ", ".join(f"beside {named} {mean}" for named, mean in means if mean)
            + f"; largest beside the faster of both {worst['ours'] / _peer(worst):.2f} "
            f"({worst['net']}, batch {worst['batch']})."
        )
    return "\n".join(lines + _busy_rows(rows))


def _write(rows: list[dict]) -> None:
    """These rows in place of older ones."""
    path = REPORT / "large.json"
    old = json.loads(path.read_text()) if path.exists() else []
    found = {_key(r): r for r in old}
    for row in rows:
        key = _key(row)
        memory = {k: v for k, v in found.get(key, {}).items() if k.endswith("_memory")}
        found[key] = memory | row
    every = sorted(found.values(), key=_place)
    tables: dict[str, list[dict]] = {PREFACE: [], SECOND_CORE: [], NARROW: [], FOREIGN: []}
    for row in every:
        own = NARROW if row.get("avx2") else FOREIGN if is_foreign(row["net"]) else PREFACE
        tables[SECOND_CORE if row.get("cores") else own].append(row)
    parts = {
        head: (_core_table if head == SECOND_CORE else _table)(own) for head, own in tables.items() if own
    }
    text = "\n".join(f"{head}\n{table}\n" for head, table in parts.items())
    path.write_text(json.dumps(every, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")


def _key(row: dict) -> tuple[str, int, int, bool, bool]:
    return row["net"], row["batch"], row["threads"], row.get("avx2", False), row.get("cores", False)


def _place(row: dict) -> tuple:
    """The order of a row in the report."""
    own = len(NAMES) if is_foreign(row["net"]) else NAMES.index(row["net"])
    return own == len(NAMES), row["threads"], own, row["net"], row["batch"]


if __name__ == "__main__":
    sys.exit(main())
