"""The dense encoding of plans: it says what the plain one says in fewer bytes, and trains with the same bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authored import source, uniform
from case_sets import EVAL, GOLDEN, TRAIN, Trainer, folders, load, persistent, trainer
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`
from planned_models import compiled
from trainers import library_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import ElementType, PlanTensor
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import SHARED_NAMES_BYTES, CompiledModel, with_dense_plans
from minbuild.planning.dense_file import DensePlan
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import SAFETY
from minbuild.planning.plan import PERSISTENT
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan, dense_form, encode_plan, is_dense
from minbuild.training.library import Session, TrainerError


def meaning(plan: bytes, model: CompiledModel) -> Any:
    """A plan of `model` without the numbers of its entries: expressions written out, tensors and names where they are
    used."""
    kernels = model.plan.kernels
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

    def text(at: int) -> bytes:
        return bytes(tables["names"][at : tables["names"].index(0, at)])

    steps = [
        (
            text(tables["kernels"][kernel][1]),
            tables["params"][params : params + kernels[kernel].params],
            tuple(map(tensor, tables["args"][at : at + len(kernels[kernel].args)])),
            (accumulate, loop),
        )
        for kernel, params, at, accumulate, loop in tables["steps"]
    ]
    graphs = [
        (steps[first : first + count], exprs[samples], rest)
        for first, count, samples, *rest in tables["graphs"]
    ]
    named = [[(text(n), tensor(t), *rest) for n, t, *rest in tables[v]] for v in ("ports", "parameters")]
    texts = [[text(n) for n in tables[v]] for v in ("symbols", "moments")]
    keys = [(key, text(n)) for key, n in tables["kernels"]]
    same = [n for n, v in tables.items() if isinstance(v, int) and n != "arena"]
    return (
        (graphs, named, texts, keys, exprs[tables["arena"]]),
        [tables[name] for name in (*same, "defaults", "constants")],
    )


@pytest.mark.parametrize("folder", folders(), ids=lambda f: f.name)
def test_a_dense_plan_says_what_the_plain_one_says_in_fewer_bytes(folder: Path) -> None:
    model = compile_model(folder, {}, {})
    for form in (1, 2, 3, 4):
        dense = with_dense_plans((model,), form)
        assert dense is not None
        plan = dense[0].plan_bytes
        assert 0 < dense_form(plan) <= form and len(plan) < 0.7 * len(model.plan_bytes)
        assert meaning(plan, model) == meaning(model.plan_bytes, model)


def test_no_plan_is_dense_and_wide() -> None:
    model = compile_model(GOLDEN / "dense", {}, {})
    plan = encode_plan(model.plan, model.largest, wide=True, dense=2)
    assert plan == encode_plan(model.plan, model.largest, wide=True)


def test_models_of_one_library_have_plans_of_one_form() -> None:
    """One of them has too many shapes for indices of 8 bits."""
    models = [compile_model(folder, {}, {}) for folder in (GOLDEN / "dense", GOLDEN / "residual")]
    dense = with_dense_plans(models)
    assert dense is not None and [dense_form(m.plan_bytes) for m in dense] == [2, 2]
    small = models[0].plan
    unused = tuple(PlanTensor(PERSISTENT, 0, ElementType.FLOAT, (size,)) for size in range(1000, 1300))
    more = replace(small, tensors=small.tensors + unused)
    assert dense_form(encode_plan(more, models[0].largest, dense=2)) == 1
    mixed = with_dense_plans((replace(models[0], plan=more), models[1]))
    assert mixed is not None and [dense_form(m.plan_bytes) for m in mixed] == [1, 1]


def test_tensors_that_steps_name_often_are_there_again() -> None:
    """Of 400 tensors that steps take one after the other, those that all of them take need no second byte."""
    model = compile_model(GOLDEN / "dense_fixed", {}, {})
    train = model.plan.routines[0]
    first = next(s for s in train.steps if len(s.args) > 2)
    extra = tuple(PlanTensor(PERSISTENT, 4 * i, ElementType.FLOAT, (1,)) for i in range(400))
    count, rest = len(model.plan.tensors), first.args[2:]
    steps = tuple(replace(first, args=(count + i, first.args[1], *rest)) for i in range(400))
    plan = replace(
        model.plan,
        tensors=model.plan.tensors + extra,
        routines=(replace(train, steps=(*train.steps, *steps)), *model.plan.routines[1:]),
    )
    both = [encode_plan(plan, {}, dense=form) for form in (0, 1)]
    assert dense_form(both[1]) == 1
    more = replace(model, plan=plan)
    assert meaning(both[1], more) == meaning(both[0], more)
    each = (
        1 + len(first.args) + 1
    )  # bytes of a step whose tensors are all near, and of the place of the new one
    assert len(DensePlan.decode(both[1]).stream) < 400 * (each + 1)


def test_dense_plans_count_negative_constants() -> None:
    """A free size less 3, as of all slices but three."""
    model = compile_model(GOLDEN / "dense", {}, {})
    shorter = symbol(model.plan.symbols[0]) - 3
    sliced = PlanTensor(PERSISTENT, 0, ElementType.FLOAT, (shorter,))
    train = model.plan.routines[0]
    step = train.steps[0]
    taken = replace(step, args=(len(model.plan.tensors), *step.args[1:]))
    plan = replace(
        model.plan,
        tensors=(*model.plan.tensors, sliced),
        routines=(replace(train, steps=(*train.steps, taken)), *model.plan.routines[1:]),
    )
    more = replace(model, plan=plan)
    plain = encode_plan(plan, model.largest)
    assert -3 in decode_plan(plain)["exprs"]["a"].tolist()
    for form in (1, 2, 3, 4):
        dense = encode_plan(plan, model.largest, dense=form)
        assert dense_form(dense) == form and meaning(dense, more) == meaning(plain, more)


# ----------------------------------------------------------------------------------------------- on the device


def trained(built: Trainer, name: str) -> list[bytes]:
    case = load(GOLDEN / name)
    session = built.session(case.checkpoint)
    found = []
    for step in range(3):
        found += [a.tobytes() for a in session.run(TRAIN, case.batch(step % 2))]
        session.optimizer_step()
        found.append(persistent(session, built))
    found.append(session.checkpoint(True))
    session.load(found[-1])
    return [*found, *(a.tobytes() for a in session.run(EVAL, case.eval_batch()))]


@pytest.mark.parametrize("form", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dense", "conv", "residual"])  # the last with loops
def test_it_trains_with_the_same_bits(name: str, form: int) -> None:
    plain, dense = trainer(GOLDEN / name), trainer(GOLDEN / name, dense=form)
    assert dense_form(dense.data) == form and not is_dense(plain.data)
    assert trained(dense, name) == trained(plain, name)


@pytest.mark.parametrize("safety", [frozenset(SAFETY), frozenset()], ids=["safe", "bare"])
def test_nodes_that_count_their_draws_train(safety: frozenset[str], tmp_path: Path) -> None:
    text = """m (float[n,4] x) => (float[n,3] y) {
        r = Constant <value_float = 0.5> () t = Constant <value = bool {1}> ()
        a = MatMul (x, w) b = Dropout <seed = 7> (a, r, t) y = MatMul (b, v)
    }"""
    model = source(text, dict(zip("wv", uniform((4, 3), (3, 3)), strict=True)))
    one = compiled(artifacts_of(model, Recipe(loss="mse", optimizer="sgd"), registry()), registry())
    assert one.plan.draw_bytes
    outputs = []
    for form in (0, 1, 2):
        (made,) = (with_dense_plans((one,), form) if form else None) or (one,)
        contents = replace(contents_of([made]), safety=safety)
        session = Session(library_of(contents, made.registry, tmp_path), made.plan_bytes, made.checkpoint)
        batch = [np.ones((2, n), np.float32) for n in (4, 3)]
        outputs.append([session.run(TRAIN, batch)[0].tobytes() for _ in range(3)])
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_library_reads_plans_of_one_encoding() -> None:
    built = [trainer(GOLDEN / "dense", dense=form) for form in range(5)]
    for library, plan in itertools.permutations(built, 2):
        with pytest.raises(TrainerError):
            Session(library.library, plan.data, load(GOLDEN / "dense").checkpoint)


Change = Callable[[DensePlan], None]


def _set(vector: str, at: int | tuple[int, str], value: int) -> Change:
    def change(plan: DensePlan) -> None:
        column = plan.vectors[vector]
        if isinstance(at, tuple):
            column[at[1]][at[0]] = value
        else:
            column[at] = value

    return change


def _scalar(name: str, value: int) -> Change:
    return lambda plan: plan.scalars.update({name: value})


def _count(name: str, value: int) -> Change:
    return lambda plan: plan.counts.update({name: value})


def _without(vector: str) -> Change:
    return lambda plan: plan.vectors.update({vector: plan.vectors[vector][:0]})


@pytest.mark.parametrize(
    "change",
    [
        _scalar("expr_count", 65537),
        _scalar("expr_count", 1),
        _scalar("constant_count", 2**31),
        _scalar("constant_count", 2**32 - 1),
        _scalar("arena", 60000),
        _scalar("trained", 200),
        _scalar("trainable_bytes", 2**31),
        _scalar("persistent_bytes", 8),
        _count("parameters", 2**31),
        _count("ports", 60000),
        _count("moments", 8),
        *(_without(n) for n in ("kernels", "graphs", "steps", "tensors", "shapes", "heads", "names")),
        _set("graphs", (0, "f0"), 65535),  # the first step
        _set("graphs", (0, "f6"), 65535),  # the first new tensor
        _set("graphs", (2, "f1"), 65535),  # steps
        _set("steps", (0, "f0"), 255),  # the kernel
        _set("steps", (0, "f4"), 65535),  # parameters
        _set("tensors", (0, "f0"), 255),
        _set("tensors", (0, "f1"), 255),
        _set("heads", 0, 9 << 11),  # rank
        _set("shapes", 0, 255),
        _set("shapes", 1, 255),  # an expression
        _set("names", -1, 65),
    ],
)
def test_damage_is_refused(change: Change) -> None:
    case, built = load(GOLDEN / "dense"), trainer(GOLDEN / "dense", dense=2)
    plan = DensePlan.decode(built.data)
    plan.vectors = {n: v.copy() for n, v in plan.vectors.items()}
    assert plan.encode() == built.data
    change(plan)
    with pytest.raises(TrainerError):
        session = Session(built.library, plan.encode(), case.checkpoint)
        session.run(TRAIN, case.batch(0))
        session.run(EVAL, case.eval_batch())
        session.optimizer_step()


def test_names_are_shared_where_that_saves_more_than_it_takes() -> None:
    few = many = compile_model(GOLDEN / "dense", {}, {})
    parameters = tuple(
        replace(p, name=f"a/folder/of/a/model/layers.{i}/{p.name}")
        for i in range(30)
        for p in many.plan.parameters
    )
    many = replace(many, plan=replace(many.plan, parameters=parameters))
    for model, form in ((few, 2), (many, 4)):
        dense = with_dense_plans([model])
        assert dense is not None and dense_form(dense[0].plan_bytes) == form
    whole, shared = with_dense_plans([many], 2), with_dense_plans([many], 4)
    assert whole is not None and shared is not None
    assert len(shared[0].plan_bytes) < len(whole[0].plan_bytes) - SHARED_NAMES_BYTES
    assert meaning(shared[0].plan_bytes, many) == meaning(whole[0].plan_bytes, many)


def _names(change: Callable[[bytearray], None]) -> bytes:
    plan = DensePlan.decode(trainer(GOLDEN / "dense", dense=4).data)
    names = bytearray(plan.vectors["names"].tobytes())
    change(names)
    plan.vectors["names"] = np.frombuffer(bytes(names), np.uint8)
    return plan.encode()


def test_names_that_share_more_than_there_is_are_refused() -> None:
    """The first name shares nothing, and no later one more than the bytes of the one before it; a name that starts
    with a byte of 0, or is not there, is none."""
    built, case = trainer(GOLDEN / "dense", dense=4), load(GOLDEN / "dense")
    same = _names(lambda names: None)
    assert same == built.data
    second = DensePlan.decode(same).vectors["names"].tobytes().index(0) + 1

    def put(at: int, value: int) -> Callable[[bytearray], None]:
        return lambda names: names.__setitem__(at, value)

    def cut(names: bytearray) -> None:
        del names[second:]

    for change in (
        put(0, 2),
        put(0, 0),
        put(0, 255),
        put(second, second),
        put(second, 0),
        put(second, 255),
        cut,
    ):
        damaged = _names(change)
        with pytest.raises(TrainerError, match="plan"):
            Session(built.library, damaged, case.checkpoint)
        with pytest.raises(ValueError):
            decode_plan(damaged)


@pytest.mark.parametrize("end", [b"\xff" * 8, b"\xff" * 64])
def test_a_number_without_an_end_is_refused(end: bytes) -> None:
    built = trainer(GOLDEN / "dense", dense=2)
    with pytest.raises(TrainerError, match="plan"):
        Session(built.library, built.data[:8] + end, load(GOLDEN / "dense").checkpoint)


@pytest.mark.parametrize("form", [1, 2, 3, 4])
def test_damaged_files_are_value_errors_for_programs(form: int) -> None:
    whole = trainer(GOLDEN / "conv", dense=form).data
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
    checked = minbuild("check", GOLDEN / "conv", "--package", out, "--write-plan", tmp_path / "plan")
    assert checked.code == 0, checked.err
    assert (tmp_path / "plan").read_bytes() == (out / "model/trainer.plan").read_bytes()


def test_fused_updates_are_proven_with_dense_plans(minbuild: Command, tmp_path: Path) -> None:
    options = ("--plan-encoding", "dense", "--updates", "fused", "--no-analysis", "--out", tmp_path / "dist")
    done = minbuild("reduce", GOLDEN / "dense_fixed", *options)
    assert done.code == 0 and "PROVEN" in done.out, done.err
