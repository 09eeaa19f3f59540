"""Bytes that nobody vouches for: the library answers with an error or works, it never crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hostile
import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, load, trainer
from places import ROOT, TESTS

from minbuild.frontend.checkpoint import schema as checkpoint_schema
from minbuild.ir import ElementType
from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.plan_encoding import EXPRESSIONS, plan_schema
from minbuild.training.library import Session, TrainerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's mprotect")
ARENA, TRAINED, PERSISTENT, NOTHING, CONSTANTS, BOUND = range(6)  # regions of tensors
NAMES = ("dense", "embedding", "conv", "residual")


def prepared(name: str, folder: Path, dense: int = 0) -> Path:
    case, built = load(GOLDEN / name), trainer(GOLDEN / name, dense=dense)
    return hostile.prepare(folder, built.path, built.data, case.checkpoint, case.batch(0), case.eval_batch())


def in_a_process(*arguments: object) -> None:
    """Runs hostile.py; a crash fails the test with the number of the mutation."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS / 'support'}"}
    command = [sys.executable, str(TESTS / "support/hostile.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    last = (done.stdout.split() or ["nothing"])[-1]
    assert done.returncode == 0, f"exit {done.returncode} after mutation {last}: {done.stderr[-2000:]}"


@pytest.mark.parametrize(("name", "dense"), [*((name, 0) for name in NAMES), ("conv", 1), ("residual", 2)])
def test_random_damage_does_not_crash(name, dense, tmp_path):
    in_a_process(prepared(name, tmp_path / name, dense), 0, 1000)


@pytest.mark.parametrize("dense", [0, 1, 2])
def test_truncation_at_every_length_is_refused(dense, tmp_path):
    in_a_process(prepared("dense", tmp_path / "dense", dense), "truncate", 0)


# ------------------------------------------------------------------------------------- plans made to do harm


class Bench:
    """A small trainer whose plan the tests rewrite."""

    def __init__(self, name: str = "dense") -> None:
        self.case, self.built = load(GOLDEN / name), trainer(GOLDEN / name)
        self.tables = decode(plan_schema(), self.built.data)
        self.tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in self.tables.items()}

    def regions(self, region: int) -> np.ndarray:
        return np.flatnonzero(self.tables["tensors"]["region"] == region)

    def status(self) -> int:
        """What the first failing call of a session with the rewritten plan answers; 0 when none fails."""
        session = None
        try:
            session = Session(self.built.library, encode(plan_schema(), self.tables), self.case.checkpoint)
            session.run(TRAIN, self.case.batch(0))
            session.run(EVAL, self.case.eval_batch())
            session.optimizer_step()
        except TrainerError as error:
            return error.status
        return 0

    def add_expr(self, op: str, a: int, b: int = 0) -> int:
        exprs = self.tables["exprs"]
        new = np.array([(a, b, EXPRESSIONS.index(op))], exprs.dtype)
        self.tables["exprs"] = np.concatenate([exprs, new])
        return len(exprs)


@pytest.fixture
def bench():
    return Bench()


def test_the_unchanged_plan_works(bench):
    assert bench.status() == 0


@pytest.mark.parametrize(
    ("vector", "member"),
    [
        ("tensors", "shape"),
        ("tensors", "at"),
        ("steps", "kernel"),
        ("steps", "params"),
        ("graphs", "steps"),
        ("graphs", "step_count"),
        ("steps", "args"),
    ],
)
@pytest.mark.parametrize("distance", [0, 1, 1000])
def test_indices_out_of_range_are_refused(bench, vector, member, distance):
    column = bench.tables[vector][member]
    column[0] = np.iinfo(column.dtype).max - 1 - distance
    assert bench.status() != 0


@pytest.mark.parametrize("value", [-1, -(2**31), 2**31 - 1, 2**28, 65536])
def test_absurd_dimensions_are_refused(bench, value):
    constants = np.flatnonzero(bench.tables["exprs"]["op"] == 0)
    dims = {int(i) for t in bench.tables["tensors"] for i in _dims(bench, t)}
    for expr in sorted(dims & set(constants.tolist())):
        old = int(bench.tables["exprs"]["a"][expr])
        bench.tables["exprs"]["a"][expr] = value
        assert bench.status() != 0, f"expression {expr}"
        bench.tables["exprs"]["a"][expr] = old


def _dims(bench: Bench, tensor: np.void) -> np.ndarray:
    at = int(tensor["shape"])
    return bench.tables["shapes"][at + 1 : at + 1 + bench.tables["shapes"][at]]


@pytest.mark.parametrize("name", ["embedding", "dense"])
def test_a_result_written_over_indices_is_refused(name):
    """Labels and indices that were in range when the kernel began need not be when it comes to use them."""
    bench = Bench(name)
    tensors, args = bench.tables["tensors"], bench.tables["args"]
    integers = np.isin(tensors["type"], (ElementType.INT64, ElementType.INT32))
    refused = 0
    for step in bench.tables["steps"]:
        used = args[step["args"] : step["args"] + 5]
        for index in (i for i in used if integers[i] and tensors["region"][i] >= BOUND):
            for written in (i for i in used[:2] if tensors["region"][i] == ARENA):
                kept = tensors[index].copy()
                tensors["region"][index], tensors["at"][index] = ARENA, tensors["at"][written]
                refused += bench.status() != 0
                tensors[index] = kept
    assert refused


@pytest.mark.parametrize("op", ["Add", "Multiply", "Divide", "Max", "Min", "Stack"])
def test_cyclic_expressions_are_refused(bench, op):
    """Every expression is made of earlier ones: one of itself, or of a later one, is none."""
    for offset in (0, 1):
        last = bench.add_expr(op, len(bench.tables["exprs"]) + offset, 0)
        at = int(bench.tables["tensors"]["shape"][0])
        bench.tables["shapes"][at + 1] = last
        assert bench.status() != 0


def test_a_division_by_zero_is_refused(bench):
    zero = bench.add_expr("Constant", 0)
    at = int(bench.tables["tensors"]["shape"][0])
    bench.tables["shapes"][at + 1] = bench.add_expr("Divide", zero, zero)
    assert bench.status() != 0


@pytest.mark.parametrize("rank", [9, 100, 65535])
def test_too_many_dimensions_are_refused(bench, rank):
    bench.tables["shapes"][bench.tables["tensors"]["shape"][0]] = rank
    assert bench.status() != 0


@pytest.mark.parametrize("element", [0, 2, 7, 11, 14, 17, 255])
def test_other_element_types_are_refused(bench, element):
    used = set(bench.tables["args"].tolist())
    tensors = bench.tables["tensors"]
    data = np.flatnonzero((tensors["type"] == 1) & (tensors["region"] != 5))  # an extent has no data
    for index in used & set(data.tolist()):
        bench.tables["tensors"]["type"][index] = element
        assert bench.status() != 0, f"tensor {index}"
        bench.tables["tensors"]["type"][index] = 1


def test_places_outside_of_their_region_are_refused(bench):
    places = [bench.add_expr("Constant", at) for at in (2**31 - 8, -8, bench.tables["persistent_bytes"])]
    for region in (TRAINED, PERSISTENT, CONSTANTS):
        for index in bench.regions(region):
            old = bench.tables["tensors"]["at"][index]
            for at in places:
                bench.tables["tensors"]["at"][index] = at
                assert bench.status() != 0, f"tensor {index} at {at}"
            bench.tables["tensors"]["at"][index] = old


def test_temporaries_outside_of_the_arena_are_refused(bench):
    far = bench.add_expr("Constant", 2**30)
    for index in bench.regions(ARENA):
        old = bench.tables["tensors"]["at"][index]
        bench.tables["tensors"]["at"][index] = far
        assert bench.status() != 0, f"tensor {index}"
        bench.tables["tensors"]["at"][index] = old


@pytest.mark.parametrize("region", [NOTHING, CONSTANTS, BOUND, BOUND + 1, 255, 65535])
def test_kernels_write_only_where_they_may(bench, region):
    """A step's first argument is written: constants, inputs and frozen parameters must not be."""
    written = int(bench.tables["args"][bench.tables["steps"]["args"][0]])
    bench.tables["tensors"]["region"][written] = region
    bench.tables["tensors"]["at"][written] = bench.add_expr("Constant", 0)
    assert bench.status() != 0


@pytest.mark.parametrize("member", ["trainable_bytes", "trained"])
@pytest.mark.parametrize("value", [2**32 - 1, 2**31, 2**31 - 1, 2**30])
def test_absurd_memory_is_refused(bench, member, value):
    bench.tables[member] = value
    assert bench.status() != 0


@pytest.mark.parametrize("value", [2**32 - 1, 2**32 - 15, 2**31, 0x70000000])
def test_more_persistent_memory_than_can_be_counted_is_refused(bench, value):
    bench.tables["persistent_bytes"] = value
    assert bench.status() != 0


def test_missing_kernels_are_named(bench):
    bench.tables["kernels"]["key"][0] ^= 1
    with pytest.raises(TrainerError, match="missing kernel.*lacks"):
        Session(bench.built.library, encode(plan_schema(), bench.tables), bench.case.checkpoint)


# ------------------------------------------------------------------------------ checkpoints made to do harm


def checkpoint_status(change) -> int:
    """The answer to a checkpoint that `change` has rewritten."""
    case, built = load(GOLDEN / "dense"), trainer(GOLDEN / "dense")
    root = decode(checkpoint_schema(), (case.folder / "checkpoint_final_opt").read_bytes())
    change(root)
    try:
        Session(built.library, built.data, encode(checkpoint_schema(), root))
    except TrainerError as error:
        return error.status
    return 0


def _set(path: str, value) -> object:
    """change(root) that sets a member: `module.trainable.0.dims`."""

    def change(root) -> None:
        *steps, last = path.split(".")
        for step in steps:
            root = root[int(step)] if isinstance(root, list) else root[step]
        root[last] = value

    return change


def test_the_unchanged_checkpoint_works():
    assert checkpoint_status(lambda root: None) == 0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 3),
        ("module", None),
        ("module.trainable", []),
        ("module.trainable.0.name", "nobody"),
        ("module.trainable.0.name", None),
        ("module.trainable.0.dims", [3]),
        ("module.trainable.0.dims", [2**40]),
        ("module.trainable.0.dims", [-1]),
        ("module.trainable.0.dims", [1] * 20),
        ("module.trainable.0.element", 11),
        ("module.trainable.0.data", b"short"),
        ("module.trainable.0.data", None),
        ("groups.0.states.0.moments", []),
        ("groups.0.states.0.parameter", "nobody"),
        ("groups.0.states.0.moments.0.data", b""),
    ],
)
def test_checkpoints_of_another_model_are_refused(path, value):
    assert checkpoint_status(_set(path, value)) == 4


@pytest.mark.parametrize(
    ("flag", "members"),
    [("nominal", {"dims": [], "data": None}), ("external", {"data": None, "external_offset": 0})],
)
def test_checkpoints_without_values_are_refused(flag, members):
    """As ORT writes them: without shapes, or with the values in another file."""

    def change(root) -> None:
        root["module"][flag] = True
        for tensor in root["module"]["trainable"] + root["module"]["frozen"]:
            tensor.update(members)

    assert checkpoint_status(change) == 4


@pytest.mark.parametrize(
    ("step", "status"), [(0, 0), (2**48 - 1, 0), (2**48, 4), (2**63 - 1, 4), (-1, 4), (-(2**63), 4)]
)
def test_step_counts_that_no_training_reaches_are_refused(step, status):
    assert checkpoint_status(_set("groups.0.step", step)) == status


def test_a_refused_checkpoint_changes_nothing():
    case, built = load(GOLDEN / "dense"), trainer(GOLDEN / "dense")
    session = built.session(case.checkpoint)
    session.run(TRAIN, case.batch(0))
    session.optimizer_step()
    before = session.checkpoint(True)
    root = decode(checkpoint_schema(), (case.folder / "checkpoint_final_opt").read_bytes())
    root["groups"][0]["states"][-1]["moments"][-1]["data"] = b"1234"
    with pytest.raises(TrainerError, match="bad checkpoint"):
        session.load(encode(checkpoint_schema(), root))
    assert session.checkpoint(True) == before
