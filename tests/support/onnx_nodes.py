"""ONNX's own node tests, run through the backend interface: shared by tests."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from places import ROOT

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import ElementType
from minbuild.training import onnx_backend

# What these expect was drawn by numpy's generator.
_DRAWN = re.compile(r"test_bernoulli.*|test_training_dropout(_default)?(_mask)?")
UNITS = (
    4  # in the last place of the largest result: what rounding in another order may do, most of all in halves
)
RECORD = ROOT / "reports" / "baseline" / "onnx_nodes.json"


@dataclass(frozen=True)
class NodeTest:
    """A model and what it must give for some inputs."""

    name: str
    model: onnx.ModelProto
    case: Any  # of onnx's loader
    rtol: float
    atol: float

    @functools.cached_property
    def data(self) -> tuple[tuple[list[Any], list[Any]], ...]:
        """Inputs and outputs, read when the test runs: reading them all takes longer than collecting the tests."""
        if self.case.model is not None:
            return tuple(self.case.data_sets)
        return tuple(
            (list(_stored(data, "input")), list(_stored(data, "output")))
            for data in sorted(Path(self.case.model_dir).glob("test_data_set_*"))
        )

    @property
    def is_numeric(self) -> bool:
        """Whether inputs and outputs are tensors of the element types there are here."""
        return all(
            v.type.WhichOneof("value") == "tensor_type"
            and v.type.tensor_type.elem_type in ElementType._value2member_map_
            for v in (*self.model.graph.input, *self.model.graph.output)
        )


@functools.cache
def node_tests() -> dict[str, NodeTest]:
    """The numeric ones of the installed onnx, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some tests are about infinite values
        cases = load_model_tests(kind="node")
    tests = [NodeTest(c.name, _model(c), c, c.rtol, c.atol) for c in cases]
    return {t.name: t for t in tests if t.is_numeric and not _DRAWN.fullmatch(t.name)}


def _model(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(str(Path(case.model_dir) / "model.onnx"))


def _stored(folder: Path, kind: str) -> Iterator[TensorProto]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.rpartition("_")[2]))
    for path in files:
        yield TensorProto.FromString(path.read_bytes())


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def outcome(test: NodeTest) -> str:
    """Empty if the test passes, else why it was refused. Raises AssertionError where the answer is wrong."""
    try:
        ready = onnx_backend.prepare(test.model)
        answers = [ready.run([_array(x) for x in inputs]) for inputs, _ in test.data]
    except (Unsupported, BadInput) as error:
        return reason(str(error))
    for found, (_, wanted) in zip(answers, test.data, strict=True):
        assert len(found) == len(wanted)
        for y, expected in zip(found, map(_array, wanted), strict=True):
            _compare(y, expected, test)
    return ""


def _compare(found: np.ndarray, wanted: np.ndarray, test: NodeTest) -> None:
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    element = ElementType.of(wanted.dtype)
    if element is not None and element.is_real:
        y, exact = found.astype(np.float64), wanted.astype(np.float64)
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        atol = max(test.atol, UNITS * largest * float(ml_dtypes.finfo(wanted.dtype).eps))
        np.testing.assert_allclose(y, exact, rtol=test.rtol, atol=atol)
    else:
        np.testing.assert_array_equal(found, wanted)


def reason(text: str) -> str:
    """The first finding without the names of file and node, so that it reads the same for like tests."""
    line = text.splitlines()[0]
    found = re.match(r".*?node '[^']*' \(([\w.:]+), opset \d+\): (.*)$", line)
    return f"{found[1]}: {found[2]}" if found else line
