"""Models whose weights are never in memory as a whole: read in place, written in pieces, bytes as of small ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, generate_artifacts, make_artifacts, read_source
from minbuild.errors import BadInput
from minbuild.frontend.onnx import large_files
from minbuild.frontend.onnx.reader import read_graph
from minbuild.frontend.onnx.writer import write_files, write_graph
from minbuild.ir.pieces import Pieces

WIDTH = 160  # squared and times 4 more than a piece
_MODULES = (
    "frontend.onnx.large_files",
    "frontend.onnx.writer",
    "frontend.checkpoint",
    "ir.flatbuffers.codec",
)


def _model(width: int = WIDTH, layers: int = 2, raw: bool = True, **external: str) -> onnx.ModelProto:
    """Layers with weights of float, and one table of whole numbers that no gradient goes to."""
    random = np.random.default_rng(3)
    arrays = {f"w{i}": random.standard_normal((width, width), np.float32) for i in range(layers)}
    arrays["table"] = random.integers(0, width, (width, 2 * width))
    tensors = [
        numpy_helper.from_array(a, n) if raw or n == "table" else
        helper.make_tensor(n, TensorProto.FLOAT, a.shape, a.reshape(-1).tolist()) for n, a in arrays.items()
    ]  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "row"], ["picked"], axis=0)]
    nodes += [helper.make_node("Cast", ["picked"], ["x0"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Slice", ["x0", "zero", "width", "one"], ["h0"])]
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]))
    tensors += [
        numpy_helper.from_array(np.array([n]), k) for k, n in (("zero", 0), ("width", width), ("one", 1))
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("row", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, ["batch", width])],
        tensors,
        doc_string="behind the initializers",
    )
    for node in nodes:
        if node.op_type == "Slice":
            node.input.insert(3, "one")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is as large as those that are written in pieces."""
    for module in _MODULES:
        monkeypatch.setattr(f"minbuild.{module}.LEAST_IN_PIECES", 1)


def _files(path: Path) -> dict[str, bytes]:
    recipe = Recipe(loss="cross-entropy", optimizer="adamw")
    return {name: bytes(content) for name, content in make_artifacts(path, recipe).files.items()}


def test_large_files_have_the_bytes_of_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_model(), path)
    small = _files(path)
    for module in _MODULES:
        monkeypatch.setattr(f"minbuild.{module}.LEAST_IN_PIECES", 1)
    assert _files(path) == small
    made = generate_artifacts(path, tmp_path / "out", Recipe(loss="cross-entropy", optimizer="adamw"))
    assert {n: (tmp_path / "out" / n).read_bytes() for n in made.files} == small
    assert isinstance(made.files["checkpoint"], Pieces) and isinstance(
        made.files["training_model.onnx"], Pieces
    )


@pytest.mark.usefixtures("all_large")
def test_weights_stay_in_the_file_that_is_read(tmp_path: Path) -> None:
    path, link = tmp_path / "model.onnx", tmp_path / "elsewhere" / "model.onnx"
    model = _model()
    onnx.save(model, path)
    link.parent.mkdir()
    link.symlink_to(path)
    without = large_files.without_weights(path)
    assert without is not None and len(without) < WIDTH * WIDTH
    for place in (path, link):
        graph = read_source(place).graph
        for tensor in model.graph.initializer:
            found = graph.initializers[tensor.name]
            assert isinstance(found, np.memmap) == (tensor.name in ("w0", "w1", "table"))
            np.testing.assert_array_equal(found, numpy_helper.to_array(tensor))


@pytest.mark.usefixtures("all_large")
def test_what_is_not_stored_raw_is_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_model(raw=False), path)
    graph = read_source(path).graph
    assert not isinstance(graph.initializers["w0"], np.memmap) and isinstance(
        graph.initializers["table"], np.memmap
    )


@pytest.mark.usefixtures("all_large")
def test_damage_is_reported_as_of_small_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = _model().SerializeToString()
    for cut in (1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(BadInput, match=r"model\.onnx: not a readable ONNX model|holds no graph"):
            read_source(path)
    random = np.random.default_rng(5)
    for _ in range(200):  # never another error than of the file as a whole
        broken = bytearray(data)
        for at in random.integers(0, 2_000, 3):
            broken[at] = random.integers(0, 256)
        path.write_bytes(broken)
        large_files.without_weights(path)


def test_a_graph_is_written_in_pieces_as_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_model(), path)
    graph = read_graph(path.read_bytes(), path)
    types = {name: read_source(path).graph.inputs["row"] for name in graph.outputs}
    whole = write_graph(graph, types, {"": 13})
    monkeypatch.setattr("minbuild.frontend.onnx.writer.LEAST_IN_PIECES", 1)
    files = write_files(graph, types, {"": 13})
    assert isinstance(files["model.onnx"], Pieces) and bytes(files["model.onnx"]) == whole


_PEAK = """
import resource, sys
from pathlib import Path
import minbuild.cli.main
from minbuild.authoring import Recipe, generate_artifacts
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
generate_artifacts(sys.argv[1], sys.argv[3], Recipe(loss="cross-entropy", optimizer="adamw"))
before = peak()
generate_artifacts(sys.argv[2], sys.argv[3], Recipe(loss="cross-entropy", optimizer="adamw"))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures the memory of a process")
def test_memory_is_about_that_of_the_parameters(tmp_path: Path) -> None:
    sizes = []
    for name, layers in (("small", 1), ("large", 20)):
        onnx.save(_model(1_024, layers), tmp_path / f"{name}.onnx")
        sizes.append((tmp_path / f"{name}.onnx").stat().st_size)
    paths = [str(tmp_path / n) for n in ("small.onnx", "large.onnx", "out")]
    found = subprocess.run([sys.executable, "-c", _PEAK, *paths], check=True, capture_output=True, text=True)
    assert int(found.stdout) < 1.25 * (sizes[1] - sizes[0])
