"""Invariants on the models of field_families.py: reports/baseline/field_invariants.md and field_invariants.json.

    python tests/slow/field_invariants.py --work FOLDER [--checks NAME,NAME] [NAME...]

FOLDER holds what field_families.py exported. Each model is made into artifacts, planned, and trained for two steps by
libraries of all kernels, in processes of its own with a limit of time, one for `ram`, which takes longest:

threads  2, 3 and 5 threads compute the bits of one: losses, gradients and parameters
fused    updates within the training step give the losses and parameters of separate ones
resumed  from a checkpoint, a session goes on with the same bits as the one that wrote it
sizes    a step of one sample, or of all, has the same bits whatever was computed before
dense    the plan in the dense encoding computes the bits of the plain one
ram      the smallest plan that --ram finds is as near to PyTorch as the usual one

Rows stay in the table where only some checks are made again. Exit code 1 where an invariant is broken.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from field_families import PLACE, exported
from field_judge import compare_gradients, compare_losses, lost, matched
from field_models import given, gradients_of, recorded
from field_table import LONGEST, Row
from own_process import answer_of

from minbuild.authoring import Recipe, make_artifacts, read_source, write_artifacts
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.codegen.sources import emit_sources
from minbuild.errors import MinbuildError, OverBudget
from minbuild.ops import registry
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans
from minbuild.planning.library_contents import full_contents
from minbuild.planning.plan_encoding import dense_form, is_wide
from minbuild.toolchain import build_library, find_toolchain, host_target
from minbuild.training.library import TRAIN, TRAIN_AND_UPDATE, Library, Session

STEM = "field_invariants"
LIMIT = 300  # seconds of a process
MOST = 8  # threads of a library
LARGE = 400_000_000  # bytes of a checkpoint that is passed over
AWAY = 5  # times as far from PyTorch as the usual plan, where that is farther than 1e-5 in losses, 1e-4 in gradients
SAME = "same bits"
PREFACE = """\
Invariants on the models of `field_families.md` (`tests/slow/field_invariants.py`, which explains them), trained for two
steps. `ram` has the share of the usual plan's temporaries that the smallest plan has, and the distances of losses and
gradients from PyTorch in float64 where bits differ; what is refused has its reason.
"""


class Trained:
    """Artifacts of one exported model, and what trains them."""

    def __init__(self, folder: Path, place: Path) -> None:
        exporter, self.meta = exported(folder)
        self.record, source = recorded(folder, exporter), read_source(folder / f"{exporter}.onnx")
        self.same = matched(source.graph.initializers, self.record)
        recipe = Recipe(
            loss="" if self.meta["loss"] == "none" else self.meta["loss"],
            train=() if lost(self.record, self.same) else tuple(self.same),
            optimizer_options=OptimizerOptions(**self.meta["adamw"]),
        )
        self.artifacts = place / "artifacts"
        write_artifacts(make_artifacts(source, recipe), self.artifacts)
        self.usual = self.planned()

    def planned(self, **options: Any) -> CompiledModel:
        return compile_model(self.artifacts, {}, {}, options=PlanOptions(**options))

    def session(
        self, model: CompiledModel, *, checkpoint: bytes | None = None, most: int = 1, threads: int = 1
    ) -> Session:
        library = full(
            is_wide(model.plan_bytes), model.plan.fused_updates, most, dense_form(model.plan_bytes)
        )
        made = Session(library, model.plan_bytes, checkpoint or model.checkpoint, threads=threads)
        made.learning_rate = float(self.meta["rate"])
        return made

    def batch(self, session: Session, step: int) -> list[np.ndarray]:
        return given(session, self.meta, self.record, step)

    def steps(self, session: Session) -> tuple[bytes, list[float], dict[str, np.ndarray]]:
        """Two steps: all losses, gradients and parameters as bytes, the losses, and the first gradients."""
        outputs, found, first = b"", list[float](), dict[str, np.ndarray]()
        for step in range(len(self.record["loss64"])):
            outputs += session.run(TRAIN, self.batch(session, step))[0].tobytes()
            found.append(float(np.frombuffer(outputs, np.float32)[-1]))
            gradients = gradients_of(session)
            outputs += b"".join(g.tobytes() for g in gradients.values())
            first = first or gradients
            session.optimizer_step()
            session.lazy_reset_grad()
        return outputs + parameters(session), found, first

    def away(self, losses: Sequence[float], gradients: Mapping[str, np.ndarray]) -> Row:
        row = Row("", "", 0)
        compare_losses(row, losses, self.record["loss64"], self.record["loss_noise"])
        compare_gradients(row, gradients, self.record, self.same)
        return row


@cache
def full(wide: bool, fused: bool, threads: int, form: int) -> Library:
    """A library of all kernels, for plans of this width, place of updates and `dense_form`, and so many threads."""
    contents = replace(full_contents(registry(), wide=wide, threads=threads, dense=form), fused_updates=fused)
    built = build_library(emit_sources(contents, registry()), host_target(), find_toolchain())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(built.shared)
        return Library(path)


def parameters(session: Session) -> bytes:
    return b"".join(session.parameter(name).tobytes() for name in session.parameters)


def unlike(found: Mapping[str, bytes], wanted: bytes) -> str:
    """The result of a comparison of bits."""
    names = [name for name, bits in found.items() if bits != wanted]
    return f"DIFFERS: {', '.join(names)}" if names else SAME


def threads(model: Trained) -> str:
    plan = model.planned(threads=str(MOST))
    bits = {n: model.steps(model.session(plan, most=MOST, threads=n))[0] for n in (1, 2, 3, 5)}
    return unlike({f"{n} threads": found for n, found in bits.items()}, bits[1])


def fused(model: Trained) -> str:
    separate, joined = model.session(model.usual), model.session(model.planned(updates=Updates(fused=True)))
    found, wanted = b"", b""
    for step in range(2):
        wanted += separate.run(TRAIN, model.batch(separate, step))[0].tobytes()
        separate.optimizer_step()
        separate.lazy_reset_grad()
        found += joined.run(TRAIN_AND_UPDATE, model.batch(joined, step))[0].tobytes()
    return unlike({"fused updates": found + parameters(joined)}, wanted + parameters(separate))


def resumed(model: Trained) -> str:
    first = model.session(model.usual)
    first.run(TRAIN, model.batch(first, 0))
    first.optimizer_step()
    first.lazy_reset_grad()
    checkpoint = first.checkpoint(True)
    loading = model.session(model.usual)
    loading.load(checkpoint)

    def goes_on(session: Session) -> bytes:
        loss = session.run(TRAIN, model.batch(session, 1))[0].tobytes()
        session.optimizer_step()
        return loss + session.checkpoint(True)

    created = model.session(model.usual, checkpoint=checkpoint)
    return unlike({"created": goes_on(created), "loading": goes_on(loading)}, goes_on(first))


def sizes(model: Trained) -> str:
    batch = model.batch(model.session(model.usual), 0)
    samples = len(batch[0])
    if not model.usual.plan.symbols:
        return "of one size"
    alone: dict[int, bytes] = {}
    found: dict[str, bool] = {}
    for order in ((1,), (samples,), (samples, 1), (1, samples)):
        session = model.session(model.usual)
        for size in order:
            loss = session.run(TRAIN, [x[:size] for x in batch])[0].tobytes()
            bits = loss + b"".join(g.tobytes() for g in gradients_of(session).values())
            session.lazy_reset_grad()
        found[f"{size} after {order[0]}"] = bits == alone.setdefault(order[-1], bits)
    return unlike({name: b"" if same else b"other" for name, same in found.items()}, b"")


def dense(model: Trained) -> str:
    plans = with_dense_plans((model.usual,))
    if plans is None:
        return "too much for it"
    found, wanted = (model.steps(model.session(plan))[0] for plan in (plans[0], model.usual))
    return unlike({f"form {dense_form(plans[0].plan_bytes)}": found}, wanted)


def ram(model: Trained) -> str:
    usual = model.usual
    try:
        small = model.planned(ram=usual.plan.persistent_bytes + 1)
    except OverBudget as error:
        least = re.search(r"takes ([\d,]+) bytes of RAM", str(error))
        assert least is not None
        small = model.planned(ram=int(least[1].replace(",", "")))
    wanted, losses, gradients = model.steps(model.session(usual))
    bits, own_losses, own_gradients = model.steps(model.session(small))
    share = max(a.peak for a in small.arenas) / max(a.peak for a in usual.arenas)
    if bits == wanted:
        return f"{share:.2f}, {SAME}"
    was, now = model.away(losses, gradients), model.away(own_losses, own_gradients)
    near = now.losses <= max(1e-5, AWAY * was.losses) and now.gradients <= max(1e-4, AWAY * was.gradients)
    verdict = "" if near or model.meta["random"] else "DIFFERS: "
    return f"{verdict}{share:.2f}, {now.losses:.1e}, {now.gradients:.1e}"


CHECKS: Mapping[str, Callable[[Trained], str]] = {
    f.__name__: f for f in (threads, fused, resumed, sizes, dense, ram)
}


def checked(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The results of these checks on a model; that of `model` is why there are no others."""
    with tempfile.TemporaryDirectory() as place:
        try:
            model = Trained(folder, Path(place))
        except MinbuildError as error:
            return {"model": f"refused: {' '.join(str(error).split())}"[:LONGEST]}
        if len(model.usual.checkpoint) > LARGE:
            return {"model": "too large"}
        return {name: result_of(CHECKS[name], model) for name in names}


def result_of(check: Callable[[Trained], str], model: Trained) -> str:
    try:
        return check(model)
    except MinbuildError as error:
        return f"refused: {' '.join(str(error).split())}"[:LONGEST]
    except Exception as error:  # noqa: BLE001  (a defect: the table says which model has it)
        return f"CRASHED: {type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="what field_families.py exported")
    parser.add_argument("--checks", default=",".join(CHECKS), help="some of %(default)s")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    rows: dict[str, dict[str, str]] = {}
    if (PLACE / f"{STEM}.json").exists():
        rows = json.loads((PLACE / f"{STEM}.json").read_text("utf-8"))
    for fuses, most in ((False, 1), (False, MOST), (True, 1)):  # built once, before processes are made
        full(False, fuses, most, 0)
    for folder in sorted(options.work.iterdir()):
        name = folder.name
        if (options.names and name not in options.names) or not (folder / "meta.json").exists():
            continue
        exporter, meta = exported(folder)
        if exporter in meta["failed"]:
            continue
        wanted = options.checks.split(",")
        for checks in filter(None, ([c for c in wanted if c != "ram"], [c for c in wanted if c == "ram"])):
            found, why = answer_of(checked, folder, checks, limit=LIMIT)
            rows.setdefault(name, {}).update(found or dict.fromkeys(checks, why))
        print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
        write(rows)
    broken = [
        n
        for n, row in rows.items()
        if any(r.startswith(("DIFFERS", "CRASHED", "crashed")) for r in row.values())
    ]
    print(f"{len(rows)} models, {len(broken)} with a broken invariant")
    return 1 if broken else 0


def write(rows: Mapping[str, Mapping[str, str]]) -> None:
    lines = [PREFACE, "| model | " + " | ".join(CHECKS) + " |", "|---|" + "---|" * len(CHECKS)]
    for name, row in sorted(rows.items()):
        cells = [row.get(check, "").replace("|", "/")[:LONGEST] for check in CHECKS]
        cells[0] = cells[0] or row.get("model", "")[:LONGEST]
        lines.append("| " + " | ".join((name, *cells)) + " |")
    (PLACE / f"{STEM}.md").write_text("\n".join(lines) + "\n", "utf-8")
    (PLACE / f"{STEM}.json").write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
