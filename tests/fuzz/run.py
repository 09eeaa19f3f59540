"""Coverage-guided fuzzing of what a device reads: plans, checkpoints, export templates and batches.

    python tests/fuzz/run.py [--seconds 60] [--model dense_fixed] [--dense 2] [--wide] [--keep FOLDER] [HARNESS...]
    python tests/fuzz/run.py --jobs 1 --seconds 100000 --runs-of plan=3200000 --runs-of checkpoint=3100000 \\
        --runs-of batch=3100000 --runs-of template=91000000        10^8 executions: half an hour of an idle processor

Each harness is linked with the trimmed trainer of a golden artifact set by clang++ with libFuzzer and the address,
undefined-behaviour and float-cast sanitizers. A corpus starts from the real files of the set and from
`tests/fuzz/corpus/HARNESS`, which holds every input that once crashed. Prints executions and executions per second of
each harness; ends with 1 if there was a finding, whose input is kept in the folder that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

from case_sets import GOLDEN, load, trainer  # noqa: E402

from minbuild.codegen.sources import emit_sources  # noqa: E402
from minbuild.frontend.checkpoint import write_checkpoint  # noqa: E402
from minbuild.ops import registry  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import with_compact_checkpoint, with_components  # noqa: E402
from minbuild.planning.library_contents import COMPONENTS  # noqa: E402

HARNESSES = ("plan", "checkpoint", "template", "batch")
SANITIZERS = "-fsanitize=fuzzer,address,undefined,float-cast-overflow"
FLAGS = ("-std=c++17", "-g", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-omit-frame-pointer", "-w")
PROPERTIES = {"epoch": 2**40, "loss": 0.5, "note": "halfway", "": ""}


@dataclass(frozen=True)
class Result:
    """One harness after its time: what it printed last, executions, executions per second, exit code."""

    harness: str
    executions: int
    per_second: int
    code: int
    log: str


def build(model: str, folder: Path, clang: str, dense: int, *, wide: bool = False) -> None:
    """The harnesses, in `folder` under their names, beside the files they read and a corpus for each; of a trainer
    whose plan is plain, or in the form `dense`, or of one with 64-bit sizes where it is `wide`."""
    source = GOLDEN / model
    case, built, compiled = (
        load(source),
        trainer(source, dense=dense, wide=wide),
        compile_model(source, {}, {}),
    )
    template = with_components(compiled, list(COMPONENTS)).export_template
    contents = replace(built.contents, components=frozenset(COMPONENTS), compact_checkpoints=True)
    files = emit_sources(contents, registry())
    for name, data in {
        **files,
        "plan": built.data,
        "checkpoint": case.checkpoint,
        "template": template or b"",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    held = case.artifacts.checkpoint
    seeds = {
        "plan": [built.data],
        "checkpoint": [
            case.checkpoint,
            write_checkpoint(replace(held, properties=PROPERTIES)),
            case.trained[0],
            with_compact_checkpoint(compiled).compact_checkpoint,
            built.session(case.trained[0]).checkpoint(True)[:-1] + b"\xff",  # the choice: all there is
        ],
        "template": [template or b""],
        "batch": [b"".join(a.tobytes() for a in case.batch(0))[:4096], bytes(64), b"\xff" * 64],
    }
    for harness, data in seeds.items():
        corpus = folder / "corpus" / harness
        corpus.mkdir(parents=True)
        for i, seed in enumerate(data):
            (corpus / f"seed{i}").write_bytes(seed)
    sources = [name for name in files if name.endswith(".cc")]
    objects = [f"{name}.o" for name in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(_clang, clang, folder, "-c", s, "-o", o)
            for s, o in zip(sources, objects, strict=True)
        ]
        [job.result() for job in jobs]
        jobs = [
            pool.submit(
                _clang, clang, folder, f"-I{HERE}", str(HERE / f"{h}.cc"), *objects, "-o", f"fuzz_{h}"
            )
            for h in HARNESSES
        ]
        [job.result() for job in jobs]


def _clang(clang: str, folder: Path, *arguments: str) -> None:
    linked = "-c" not in arguments
    sanitizers = SANITIZERS if linked else SANITIZERS.replace("fuzzer,", "fuzzer-no-link,")
    command = [clang, *FLAGS, sanitizers, "-fno-sanitize-recover=all", "-Iinclude", "-Isrc", *arguments]
    subprocess.run(command, cwd=folder, check=True)


def fuzz(harness: str, folder: Path, seconds: int, runs: int, seed: int) -> Result:
    """Run one harness for at most `seconds` and `runs` executions, over its corpus and the inputs that once crashed. A
    `seed` other than 0 gives the same inputs every time."""
    kept = HERE / "corpus" / harness
    command = [
        *(f"./fuzz_{harness}", f"corpus/{harness}", *([str(kept)] if kept.is_dir() else [])),
        *(
            f"-max_total_time={seconds}",
            f"-runs={runs}",
            f"-seed={seed}",
            "-timeout=60",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ),
        *("-max_len=8192", f"-artifact_prefix={harness}-"),
    ]
    environment = os.environ | {
        "MINBUILD_FUZZ_FILES": str(folder),
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:malloc_context_size=4:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    count = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    rate = re.search(r"average_exec_per_sec:\s*(\d+)", done.stderr)
    return Result(
        harness,
        int(count[1]) if count else 0,
        int(rate[1]) if rate else 0,
        done.returncode,
        done.stderr,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="time of each harness")
    parser.add_argument("--runs", type=int, default=-1, help="most executions of each harness")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers; 0 is another every time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="harnesses at a time")
    parser.add_argument(
        "--runs-of",
        action="append",
        default=[],
        metavar="HARNESS=COUNT",
        help="most executions of one harness; repeatable",
    )
    parser.add_argument("--model", default="dense_fixed", help="golden artifact set whose trainer is fuzzed")
    parser.add_argument(
        "--dense",
        type=int,
        choices=(1, 2, 3, 4),
        default=0,
        help="the trainer reads dense plans, 2 and 4: with 8-bit indices, from 3 on: with shared names",
    )
    parser.add_argument(
        "--wide", action="store_true", help="the trainer counts in 64 bits; its plan is not dense"
    )
    parser.add_argument("--keep", type=Path, help="folder for programs, corpora and findings")
    parser.add_argument("--clang", default="clang++")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("harnesses", nargs="*", help=f"of {', '.join(HARNESSES)}; default: all")
    options = parser.parse_args()
    runs = dict.fromkeys(HARNESSES, options.runs)
    for text in options.runs_of:
        harness, _, count = text.partition("=")
        if harness not in HARNESSES or not count.isdecimal():
            parser.error(f"--runs-of {text}: write HARNESS=COUNT, with one of {', '.join(HARNESSES)}")
        runs[harness] = int(count)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="minbuild-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    build(options.model, folder, options.clang, options.dense, wide=options.wide)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(
            pool.map(
                lambda h: fuzz(h, folder, options.seconds, runs[h], options.seed),
                options.harnesses or HARNESSES,
            )
        )
    for result in results:
        print(
            f"{result.harness}: {result.executions:,} executions, {result.per_second:,} a second", flush=True
        )
        if result.code:
            print(f"{result.log[-4000:]}\n{result.harness}: the input is in {folder}")
    if options.json:
        rows = {r.harness: {"executions": r.executions, "per_second": r.per_second} for r in results}
        options.json.write_text(json.dumps({"model": options.model, "harnesses": rows}, indent=2) + "\n")
    failed = sum(1 for r in results if r.code)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
