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
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minbuild.options.build_options import BuildOptions
    from minbuild.options.plan_options import PlanOptions
    from minbuild.planning.compiled_model import CompiledModel

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "golden"), str(ROOT)]
import large_table  # noqa: E402
from large_race import WORKER, Failed, Pair, Participant, check_losses, raced  # noqa: E402
from large_table import NAMES, PAIR, WHO, is_foreign  # noqa: E402

from minbuild.errors import MinbuildError  # noqa: E402

TORCH_PACKAGES = ("torch", "onnx", "onnxscript", "numpy")
CORES = tuple((who, threads) for who in ("torch", "ours") for threads in (1, 2))
AVX2 = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def chosen(names: Sequence[str]) -> list[str]:
    """The networks that are asked for."""
    own = [n for n in NAMES if not names or any(n.startswith(name) for name in names)]
    return own + [name for name in names if is_foreign(name)]


def main() -> int:
    options = _options()
    wrong = [n for n in options.names if not chosen([n])]
    if wrong:
        sys.exit(f"{wrong[0]}: no such network; there are {', '.join(NAMES)}.")
    with tempfile.TemporaryDirectory(prefix="minbuild-large-") as scratch:
        work = options.work or Path(scratch)
        pythons = environments(options, work) | {"ours": Path(sys.executable)}
        rows, failures = [], []
        for name in chosen(options.names):
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
    print(large_table.table(rows) if rows else "No row was measured.")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    behind = any(large_table.is_behind(row) for row in rows)
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


def environments(options: argparse.Namespace, work: Path) -> dict[str, Path]:
    """The Pythons of PyTorch and of ONNX Runtime: those of --torch and --ort, else of environments made in `work`."""
    return {"torch": options.torch or _torch_python(work), "ort": options.ort or _ort_python(work)}


def _torch_python(work: Path) -> Path:
    folder = work / "torch-environment"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *TORCH_PACKAGES], check=True)
    return python


def _ort_python(work: Path) -> Path:
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
    print(large_table.line(row) + large_table.note(row), file=sys.stderr, flush=True)
    if not options.dry:
        large_table.write([row])
    return row


def _kind(options: argparse.Namespace) -> str:
    """The suffix of files that keep rows of a table of their own."""
    return "_avx2" if options.avx2 else "_cores" if options.cores else ""


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
        check_losses({who: p.loss for who, p in participants.items()})
        row |= raced(participants, threads, options.seconds)
    finally:
        for p in participants.values():
            p.end()
    return row


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
        check_losses(losses)
        row = {"net": name, "batch": batch, "threads": 2, "cores": True}
        return row | raced(participants, 2, options.seconds)
    finally:
        for p in participants.values():
            p.end()


if __name__ == "__main__":
    sys.exit(main())
