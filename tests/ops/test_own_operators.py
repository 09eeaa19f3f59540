"""Operators of a user's own: two files in a folder, and nothing of the project is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from case_sets import GOLDEN
from commands import command_fixture  # noqa: F401  the fixture `minbuild`

from minbuild.frontend.artifacts import load_artifacts
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.toolchain import host_target
from minbuild.training.library import TRAIN, Library, Session

PYTHON = '''
"""Signed square, y = x * |x|, and its gradient."""

import numpy as np

from minbuild.ops.core.definition import FLOATS, KernelFunction, Op, same_as

square = KernelFunction("signed_square", ("y:T=", "x:T"), types={"T": FLOATS})
slope = KernelFunction("signed_square_grad", ("dx:T=", "dy:T", "x:T"), types={"T": FLOATS})

signed_square = Op(
    "SignedSquare",
    domain="acme",
    infer=same_as(0),
    reference=lambda attributes, x: x * np.abs(x),
    lower=lambda ctx: (square.call(ctx.result(), ctx.name(0), types=(ctx.element(),)),),
    kernels=(square,),
)
signed_square_grad = Op(
    "SignedSquareGrad",
    domain="acme",
    infer=same_as(0),
    reference=lambda attributes, dy, x: 2 * dy * np.abs(x),
    lower=lambda ctx: (slope.call(ctx.result(), ctx.name(0), ctx.name(1), types=(ctx.element(),)),),
    kernels=(slope,),
)

KERNELS = (square, slope)
OPS = (signed_square, signed_square_grad)
'''
CXX = """
#include "lib/loops/elementwise.h"

namespace minbuild {

struct SignedSquareOf {
  template <class V>
  MB_INLINE V operator()(V x) const {
    return x * max(x, -x);
  }
};
struct SignedSquareGradOf {
  template <class V>
  MB_INLINE V operator()(V dy, V x) const {
    return V(2) * dy * max(x, -x);
  }
};

template <class T>
Status signed_square(const Call& call) {
  return map<kBaseline, T>(call, SignedSquareOf{}, 1);
}
template <class T>
Status signed_square_grad(const Call& call) {
  return map<kBaseline, T>(call, SignedSquareGradOf{}, 1, 2);
}

MB_INSTANTIATE_SIGNED_SQUARE

}  // namespace minbuild
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> tuple[Path, Path]:
    """Artifacts whose hidden layer uses the operator, and the folder that defines it."""
    root = tmp_path_factory.mktemp("own")
    artifacts, operators = root / "artifacts", root / "operators"
    operators.mkdir()
    (operators / "signed_square.py").write_text(PYTHON)
    (operators / "signed_square.cc").write_text(CXX)
    shutil.copytree(GOLDEN / "dense", artifacts)
    for path in artifacts.glob("*.onnx"):
        model = onnx.load(path)
        gemm = next((n.output[0] for n in model.graph.node if n.op_type == "Gemm"), None)
        for node in model.graph.node:
            if node.op_type == "Relu":
                assert node.input[0] == gemm
                node.op_type, node.domain = "SignedSquare", "acme"
            elif node.op_type == "ReluGrad":
                node.op_type, node.domain, node.input[1] = "SignedSquareGrad", "acme", gemm
        model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
        onnx.save(model, path)
    return artifacts, operators


def test_without_the_folder_the_operator_is_missing(own, minbuild):
    answer = minbuild("scan", own[0])
    assert answer.code == 3
    assert "acme:SignedSquare" in answer.err and "--ops-dir" in answer.err


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("OPS = (signed_square, signed_square_grad)", "", "the file declares no operators"),
        ("OPS = (signed_square, signed_square_grad)", "OPS = signed_square", "OPS is a tuple of Op"),
        ("KERNELS = (square, slope)", "", "which no file lists"),
        ("kernels=(square,)", "kernels=(slope,)", "calls kernel signed_square, which it does not declare"),
        ("types=(ctx.element(),)", "types=()", "declares 1 element types, the call has 0"),
        ('"signed_square",', '"relu",', "both declare kernel relu"),
        ('"signed_square",', '"signed_sqare",', "defines no kernel `signed_sqare`"),
    ],
)
def test_a_definition_that_contradicts_itself_is_an_error(own, tmp_path, minbuild, line, instead, message):
    assert line in PYTHON
    (tmp_path / "signed_square.py").write_text(PYTHON.replace(line, instead))
    shutil.copy(own[1] / "signed_square.cc", tmp_path)
    answer = minbuild("reduce", own[0], "--out", tmp_path / "dist", "--ops-dir", tmp_path)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


def test_an_operator_of_ones_own_is_built_proven_and_reported(own, tmp_path, minbuild):
    artifacts, operators = own
    answer = minbuild("reduce", artifacts, "--out", tmp_path / "dist", "--ops-dir", operators)
    assert answer.code == 0, answer.err
    assert ": PROVEN on " in answer.out
    assert "identical bits" in (tmp_path / "dist/report/report.md").read_text("utf-8")
    assert (tmp_path / "dist/src/kernels/signed_square.cc").is_file()
    report = json.loads((tmp_path / "dist/report/report.json").read_text())
    assert "signed_square" in json.dumps(report)


def test_an_operator_of_ones_own_computes_its_reference(own, tmp_path, minbuild):
    artifacts, operators = own
    assert minbuild("reduce", artifacts, "--out", tmp_path / "dist", "--ops-dir", operators).code == 0
    bundle = load_artifacts(artifacts)
    exact = ReferenceTrainer(bundle, registry((operators,)))
    library = Library(tmp_path / "dist/lib" / str(host_target()) / "libminbuild.so")
    plan, checkpoint = ((tmp_path / "dist/model" / n).read_bytes() for n in ("trainer.plan", "checkpoint"))
    session = Session(library, plan, checkpoint)
    random = np.random.default_rng(3)
    batch = [random.standard_normal((4, 12)).astype(np.float32), random.integers(0, 5, 4)]
    np.testing.assert_allclose(session.run(TRAIN, batch)[0], exact.train_step(*batch)[0], rtol=1e-5)
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(session.gradient(name), gradient, rtol=1e-4, atol=1e-6)
