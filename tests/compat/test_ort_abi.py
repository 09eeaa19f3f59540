"""`--abi ort`: a program for ONNX Runtime's C interface runs as it is, with the losses that ONNX Runtime recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from ort_programs import PROGRAMS, mini_header, write_batches
from places import GOLDEN
from programs import CC, run
from quiet_progress import Quiet

from minbuild.codegen.ort_abi import INTERFACE, ort_functions
from minbuild.errors import BadInput
from minbuild.options.build_options import BuildOptions
from minbuild.pipeline import Request, reduce
from minbuild.toolchain import host_target
from minbuild.training.api import CheckpointState, Module, Optimizer

ADDED = 40 * 1024  # the most that the interface may cost
FLAVORS = ("interpreted", "compiled")


def package(folder: Path, artifacts: Path, flavor: str = "interpreted", **others) -> Path:
    """The folder of the libraries for this machine."""
    options = BuildOptions(flavor=flavor)
    reduce(Request((artifacts,), folder, analysis=False, build_options=options, abi="ort", **others), Quiet())
    return folder / "lib" / str(host_target())


@pytest.fixture(scope="module", params=FLAVORS)
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("abi") / "dist", GOLDEN / "dense", request.param)


def train(libraries: Path, case: Path, inputs: list[np.ndarray], rate: float, folder: Path) -> str:
    """The output of the C program on these batches; it is compiled against a header of our own."""
    (folder / "mini_ort.h").write_text(mini_header())
    steps = write_batches(folder / "batches", inputs)
    flags = (*CC, "-std=c11", "-Wno-unused-parameter", '-DORT_HEADER="mini_ort.h"', f"-I{folder}")
    library = (libraries / INTERFACE.soname, f"-Wl,-rpath,{libraries}")
    run(*flags, PROGRAMS / "train.c", *library, "-o", "train", cwd=folder)
    return run("./train", case, "batches", steps, rate, cwd=folder)


def losses_of(said: str) -> list[np.float32]:
    return [np.float32(word) for word in re.findall(r"^loss (.*)$", said, re.MULTILINE)]


def test_a_c_program_trains_to_the_recorded_losses(libraries: Path, tmp_path: Path) -> None:
    case = GOLDEN / "dense"
    meta, recorded = json.loads((case / "meta.json").read_text()), np.load(case / "reference.npz")
    inputs = [recorded[f"in/{name}"] for name in meta["input_names"]]
    said = train(libraries, case, inputs, meta["lr"], tmp_path)
    np.testing.assert_allclose(losses_of(said), recorded["loss"][: len(inputs[0])], rtol=1e-5)
    lines = said.splitlines()
    assert "rate 0.001" in lines and f"inputs {' '.join(meta['input_names'])}" in lines
    assert "rank of the loss 0" in lines and "property 2 somebody" in lines and "scheduled 0.25" in lines
    refused = [line for line in lines if line.startswith("refused")]
    names = ", ".join(meta["input_names"])
    assert refused[0].startswith("refused 9: not implemented")
    assert refused[1] == "refused 3: cannot read /nowhere"
    assert "not of the model that this library was made of" in refused[2]
    assert refused[3] == f"refused 2: 1 input was given, the model takes {len(meta['input_names'])}: {names}."
    assert refused[4] == "refused 1: register a scheduler of the learning rate first"
    assert (tmp_path / "saved").stat().st_size > (case / "checkpoint").stat().st_size, "with optimizer state"


def test_a_session_grows_with_its_batches(libraries: Path, tmp_path: Path) -> None:
    """Far beyond what memory was planned for; the losses are those of a trainer that grows in Python."""
    case, random = GOLDEN / "dense", np.random.default_rng(1)
    inputs = [random.standard_normal((3, 70, 12)).astype(np.float32), random.integers(0, 3, (3, 70))]
    said = train(libraries, case, inputs, 0.01, tmp_path)
    state = CheckpointState.load_checkpoint(case / "checkpoint")
    module = Module(case / "training_model.onnx", state, case / "eval_model.onnx")
    optimizer = Optimizer(case / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    expected = []
    for batch in zip(*inputs, strict=True):
        expected.append(np.float32(module(*batch)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses_of(said) == expected


def test_the_interface_costs_little(libraries: Path) -> None:
    """Beside the trainer's own library, which reads its plan from a file where it is not compiled in."""
    native, ort = ((libraries / name).stat().st_size for name in ("libminbuild.so", INTERFACE.soname))
    plan = libraries.parents[1] / "model/trainer.plan"
    template = libraries.parents[1] / "model/inference.template"
    model = sum(path.stat().st_size for path in (plan, template) if path.is_file())
    assert 0 < ort - native - model < ADDED


def test_the_lists_of_functions_are_whole() -> None:
    """The places that programs compile in, some of them by hand."""
    tables = ort_functions()
    assert {name: len(functions) for name, functions in tables.items()} == {
        "OrtApi": 285,
        "OrtTrainingApi": 33,
    }
    places = {"CreateStatus": 0, "CreateEnv": 3, "Run": 9, "ReleaseEnv": 92, "GetTrainingApi": 219}
    assert {name: tables["OrtApi"].index(name) for name in places} == places
    assert tables["OrtTrainingApi"][9:12] == ("TrainStep", "EvalStep", "SetLearningRate")


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"abi": "onnx"}, "--abi onnx: there is no such interface. Choose from ort"),
        ({"cxx": "g++"}, "linked by the default toolchain"),
        ({"targets": ("wasm32",)}, "on Linux only"),
        ({"build_options": BuildOptions(file_io="off")}, "which --file-io off leaves out"),
    ],
)
def test_what_cannot_be_is_refused(others: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        reduce(Request((GOLDEN / "dense",), tmp_path / "dist", **{"abi": "ort", **others}), Quiet())
