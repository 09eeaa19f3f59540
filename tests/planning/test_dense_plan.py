"""The dense encoding of plans: it says what the plain one says in fewer bytes, and trains with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, Trainer, folders, load, persistent, trainer
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`

from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import with_dense_plans
from minbuild.planning.plan_encoding import (
    EXPRESSIONS,
    decode_plan,
    encode_plan,
    is_dense,
    plan_schema,
)
from minbuild.training.library import Session, TrainerError


def meaning(plan: bytes, arguments: list[int]) -> Any:
    """A plan without the numbers of its entries: expressions written out, tensors where they are used. `arguments` are
    how many each kernel has."""
    tables = {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in decode_plan(plan).items()}
    exprs: list[int] = []
    known: dict[object, int] = {}
    for a, b, op in tables["exprs"]:
        name = EXPRESSIONS[op]
        tree = (name, a) if name in ("Constant", "Symbol") else (name, exprs[a], exprs[b])
        exprs.append(known.setdefault(tree, hash(tree)))

    def tensor(i: int) -> object:
        at, shape, *rest = tables["tensors"][i]
        dims = tables["shapes"][shape + 1 : shape + 1 + tables["shapes"][shape]]
        return exprs[at], tuple(exprs[d] for d in dims), tuple(rest)

    steps = [
        (kernel, params, accumulate, loop, tuple(map(tensor, tables["args"][at : at + arguments[kernel]])))
        for kernel, params, at, accumulate, loop in tables["steps"]
    ]
    graphs = [
        (steps[first : first + count], exprs[samples], rest)
        for first, count, samples, *rest in tables["graphs"]
    ]
    named = [[(n, tensor(t), *rest) for n, t, *rest in tables[v]] for v in ("ports", "parameters")]
    same = ("names", "symbols", "defaults", "kernels", "params", "moments", "constants", "fingerprint")
    return graphs, named, exprs[tables["arena"]], [tables[name] for name in same]


@pytest.mark.parametrize("folder", folders(), ids=lambda f: f.name)
def test_a_dense_plan_says_what_the_plain_one_says_in_fewer_bytes(folder: Path) -> None:
    model = compile_model(folder, {}, {})
    dense = with_dense_plans((model,))
    assert dense is not None
    plan = dense[0].plan_bytes
    assert is_dense(plan) and len(plan) < len(model.plan_bytes)
    arguments = [len(kernel.args) for kernel in model.plan.kernels]
    assert meaning(plan, arguments) == meaning(model.plan_bytes, arguments)


def test_no_plan_is_dense_and_wide() -> None:
    model = compile_model(GOLDEN / "dense", {}, {})
    plan = encode_plan(model.plan, model.largest, wide=True, dense=True)
    assert plan == encode_plan(model.plan, model.largest, wide=True)


# ----------------------------------------------------------------------------------------------- on the device


def trained(built: Trainer, name: str) -> list[bytes]:
    case = load(GOLDEN / name)
    session = built.session(case.checkpoint)
    found = []
    for step in range(3):
        found += [a.tobytes() for a in session.run(TRAIN, case.batch(step % 2))]
        session.optimizer_step()
        found.append(persistent(session, built))
    return [*found, *(a.tobytes() for a in session.run(EVAL, case.eval_batch()))]


@pytest.mark.parametrize("name", ["dense", "conv", "residual"])  # the last with loops
def test_it_trains_with_the_same_bits(name: str) -> None:
    plain, dense = trainer(GOLDEN / name), trainer(GOLDEN / name, dense=True)
    assert is_dense(dense.data) and not is_dense(plain.data)
    assert trained(dense, name) == trained(plain, name)


def test_a_library_reads_plans_of_one_encoding() -> None:
    plain, dense = trainer(GOLDEN / "dense"), trainer(GOLDEN / "dense", dense=True)
    for library, plan in ((plain.library, dense.data), (dense.library, plain.data)):
        with pytest.raises(TrainerError):
            Session(library, plan, load(GOLDEN / "dense").checkpoint)


Change = Callable[[dict[str, Any]], None]


def _set(vector: str, member: str | None, at: int, value: int) -> Change:
    def change(tables: dict[str, Any]) -> None:
        column = tables[vector] if member is None else tables[vector][member]
        column[at] = value

    return change


def _scalar(name: str, value: int) -> Change:
    return lambda tables: tables.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        _scalar("expr_count", 65536),
        _scalar("expr_count", 1),
        _scalar("constant_count", 2**31),
        _scalar("constant_count", 2**32 - 1),
        _scalar("arena", 60000),
        _set("stream", None, -1, 255),  # the last number does not end
        _set("graphs", "steps", 0, 65535),
        _set("graphs", "newest", 0, 65535),
        _set("graphs", "step_count", 2, 65535),
        _set("steps", "kernel", 0, 255),
        _set("steps", "params", 0, 65535),
        _set("tensors", "at", 0, 65535),
        _set("tensors", "shape", 0, 65535),
        _set("shapes", None, 0, 9),  # rank
        _set("shapes", None, 1, 65535),  # an expression
    ],
)
def test_damage_is_refused(change: Change) -> None:
    case, built = load(GOLDEN / "dense"), trainer(GOLDEN / "dense", dense=True)
    tables = decode(plan_schema(dense=True), built.data)
    tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in tables.items()}
    change(tables)
    with pytest.raises(TrainerError):
        session = Session(built.library, encode(plan_schema(dense=True), tables), case.checkpoint)
        session.run(TRAIN, case.batch(0))
        session.run(EVAL, case.eval_batch())
        session.optimizer_step()


def test_damaged_files_are_value_errors_for_programs() -> None:
    whole = trainer(GOLDEN / "conv", dense=True).data
    random, refused = np.random.default_rng(1), 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            data[random.integers(8, len(data))] = random.integers(256)
        try:
            decode_plan(bytes(data))
        except ValueError:
            refused += 1
    assert 0 < refused < 300


# ------------------------------------------------------------------------------------------ on the command line


def test_the_smaller_encoding_is_taken_and_the_report_says_so(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    options = ("--plan-encoding", "auto", "--no-analysis", "--out", out)
    done = minbuild("reduce", GOLDEN / "conv", *options)
    assert done.code == 0 and "PROVEN" in done.out, done.err
    notes = json.loads((out / "report/report.json").read_text())["model"]["notes"]
    assert [n for n in notes if n.startswith("Plan encoding dense saves")]
    assert is_dense((out / "model/trainer.plan").read_bytes())
    checked = minbuild("check", GOLDEN / "conv", "--package", out)
    assert checked.code == 0, checked.err
