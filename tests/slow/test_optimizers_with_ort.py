"""Optimizers that are nodes of a graph, next to ONNX Runtime 1.19.2 where its build for processors has them.

    pytest tests/slow/test_optimizers_with_ort.py

MINBUILD_ORT_PYTHON names a Python that has onnxruntime-training-cpu 1.19.2; without it, an environment is made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "golden"), str(HERE.parent), str(ROOT)]

import trainers  # noqa: E402
from make_artifacts import prepare  # noqa: E402

from minbuild.ops import registry  # noqa: E402
from minbuild.ops.core.definition import TestCase  # noqa: E402

REGISTRY = registry()
THERE = ("com.microsoft:SGDOptimizer", "com.microsoft:AdamOptimizer")
MISSING = (
    "com.microsoft:LambOptimizer",
    "ai.onnx.preview.training:Adagrad",
    "ai.onnx.preview.training:Adam",
    "ai.onnx.preview.training:Momentum",
)
PLAIN = 6  # inputs of AdamOptimizer; behind them are those its kernel does not look at


def model_of(key: str, case: TestCase) -> bytes:
    """A model of one node, in float."""
    op = REGISTRY.ops[key]
    arrays = {f"x{i}": trainers.at_precision(x, np.float32) for i, x in enumerate(case.inputs)}
    outputs = ["" if i in case.absent else f"y{i}" for i in range(case.outputs)]
    names = [n if a is not None else "" for n, a in arrays.items()]
    node = helper.make_node(op.name, names, outputs, domain=op.domain, **case.attributes)
    first = TensorProto.INT64 if case.outputs == 5 else TensorProto.FLOAT  # the count of steps
    types = [first, *[TensorProto.FLOAT] * (case.outputs - 1)]
    graph = helper.make_graph(
        [node],
        "optimizer",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
            if a is not None
        ],
        [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types, strict=True) if n],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(op.domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def cases_of(key: str) -> list[TestCase]:
    make = REGISTRY.ops[key].cases
    assert make is not None
    return [case for case in make(np.random.default_rng(5)) if len(case.inputs) <= PLAIN or key in MISSING]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Path:
    """A folder with what ONNX Runtime says to every case."""
    folder = tmp_path_factory.mktemp("ort")
    for key in (*THERE, *MISSING):
        for index, case in enumerate(cases_of(key)):
            stem = f"{key.replace(':', '_')}_{index}"
            (folder / f"{stem}.onnx").write_bytes(model_of(key, case))
            given = {f"x{i}": trainers.at_precision(x, np.float32) for i, x in enumerate(case.inputs)}
            np.savez(folder / f"{stem}.npz", **{n: x for n, x in given.items() if x is not None})
    python = os.environ.get("MINBUILD_ORT_PYTHON") or str(prepare(folder / "env", "python3.11"))
    subprocess.run([python, str(HERE.with_name("ort_nodes.py")), str(folder)], check=True, cwd=ROOT)
    return folder


@pytest.mark.parametrize("key", THERE)
def test_steps_are_those_of_onnx_runtime(key, answers, tmp_path):
    cases = cases_of(key)
    assert cases
    applied = [trainers.one_node(REGISTRY.ops[key], case) for case in cases]
    plans = [trainers.plan_of(one.artifacts, REGISTRY) for one in applied]
    library = trainers.library_of(trainers.contents_of(plans), REGISTRY, tmp_path)
    for index, (case, one, plan) in enumerate(zip(cases, applied, plans, strict=True)):
        found = trainers.run(library, plan, one)
        wanted = np.load(answers / f"{key.replace(':', '_')}_{index}.out.npz")
        assert set(found) == set(wanted.files)
        for name, array in wanted.items():
            problem = trainers.disagreement(found[name], array.astype(np.float64), case.ulps)
            assert not problem, f"{case.name}, {name}: {problem}"


@pytest.mark.parametrize("key", MISSING)
def test_others_are_not_there(key, answers):
    """So their own references, and the numbers of torch and of ONNX's node tests, are what they are held to."""
    said = (answers / f"{key.replace(':', '_')}_0.txt").read_text()
    assert "NOT_IMPLEMENTED" in said or "not a registered" in said
