"""The rows that bench_large.py measures, and the report of all of them: reports/baseline/large.md, and large.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

REPORT = Path(__file__).resolve().parents[2] / "reports" / "baseline"
NAMES = ("ResNet-18", "ResNet-50", "ViT-Tiny", "BERT 4x256", "BERT-base", "DistilBERT head", "LoRA BERT-base")
NAMES += ("LSTM 2x1024", "MLP 10M", "MobileNetV2", "EfficientNet-B0", "DS-CNN")
WHO = ("ort", "torch", "ours")
PAIR = "ours_pair"  # two trainers with one thread each
QUIET = 0.1  # cores that other processes may use


def is_foreign(name: str) -> bool:
    """True for a network that another library defines."""
    return ":" in name


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


def is_behind(row: dict) -> bool:
    """True if another is faster, or if the second core gives PyTorch more."""
    return _falls_behind(row) if row.get("cores") else _peer(row) < row["ours"]


def _peer(row: dict) -> float:
    """Milliseconds of the faster of the others."""
    return min(row[who] for who in ("ort", "torch") if who in row)


def line(row: dict) -> str:
    """A row of its table, in Markdown."""
    return _core_line(row) if row.get("cores") else _own_line(row)


def _own_line(row: dict) -> str:
    ratios = (f"{row['ours'] / row[who]:.2f}" if who in row else "" for who in ("ort", "torch"))
    memory = [f"{row[f'{who}_memory'] / 1e6:.0f}" if f"{who}_memory" in row else "" for who in WHO]
    times = (f"{row[who]:.{2 if row[who] < 100 else 0}f}" if who in row else "" for who in WHO)
    named = (row["net"], str(row["batch"]), str(row["threads"]))
    cells = (*named, *times, *ratios, *memory)
    return "| " + " | ".join(cells) + " |"


def note(row: dict) -> str:
    """A note on other work of the machine, "" where there was little."""
    others = row.get("others", 0)
    return f" other processes used {others:.1f} cores" if others > QUIET else ""


def _mean(rows: list[dict], who: str) -> str:
    """The geometric mean of minbuild's times beside those of `who`, of the rows that have them; "" if none has."""
    ratios = [row["ours"] / row[who] for row in rows if who in row]
    return f"{geometric_mean(ratios):.2f}" if ratios else ""


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
        if note(row)
    ]
    return [f"Cores that other processes used meanwhile: {'; '.join(busy)}."] * bool(busy)


def table(rows: list[dict]) -> str:
    """The table of `rows`, all on the second core or none, and sentences about it."""
    return (_core_table if rows[0].get("cores") else _own_table)(rows)


def _own_table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1), *map(_own_line, rows), ""]
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


def write(rows: list[dict]) -> None:
    """Puts `rows` into the report, in place of older ones."""
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
    text = "\n".join(f"{head}\n{table(own)}\n" for head, own in tables.items() if own)
    path.write_text(json.dumps(every, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")


def _key(row: dict) -> tuple[str, int, int, bool, bool]:
    return row["net"], row["batch"], row["threads"], row.get("avx2", False), row.get("cores", False)


def _place(row: dict) -> tuple:
    """The order of a row in the report."""
    own = len(NAMES) if is_foreign(row["net"]) else NAMES.index(row["net"])
    return own == len(NAMES), row["threads"], own, row["net"], row["batch"]
