"""Parameters beyond ONNX Runtime's format: devices start from a compact checkpoint, or the reason is named before
anything is built. The limits are lowered, so that no test needs 2 GB of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import GOLDEN
from quiet_progress import Quiet

from minbuild.authoring.load import load
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ops import registry
from minbuild.options.plan_options import PlanOptions
from minbuild.pipeline import Request, reduce
from minbuild.planning.compile import compile_artifacts, compile_model
from minbuild.planning.compiled_model import with_components
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import encode_plan, is_wide
from minbuild.planning.size_limits import check_address_space, frozen_bytes
from minbuild.verify.differential import seeded_script

TRANSFER = GOLDEN / "transfer"  # has parameters that do not train


@pytest.fixture
def _small_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of ONNX Runtime's format hold 100 bytes, and so do the addresses of narrow plans."""
    monkeypatch.setattr("minbuild.planning.compile.LARGEST_FILE", 100)
    monkeypatch.setattr("minbuild.planning.size_limits.MOST_ARENA", 100)
    for module in ("planning.size_limits", "verify.prove", "codegen.package_docs"):
        monkeypatch.setattr(f"minbuild.{module}.MOST_SAVED", 100)


@pytest.mark.usefixtures("_small_format")
def test_a_trainer_of_large_frozen_parameters_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = compile_model(TRANSFER, {}, {})
    few = replace(contents_of((model,)), compact_checkpoints=False)  # a full library takes long to build
    monkeypatch.setattr("minbuild.codegen.library_builder.full_contents", lambda *_: few)
    notes: list[str] = []

    class Noting(Quiet):
        def stage(self, text: str) -> None:
            notes.append(text)

        def note(self, text: str) -> None:
            notes.append(text)

    reduce(Request((TRANSFER,), tmp_path / "dist", analysis=False, integrations=("cargo",)), Noting())
    (limit,) = (i for i, text in enumerate(notes) if "bytes, and a checkpoint holds 100" in text)
    assert limit < next(i for i, text in enumerate(notes) if text.startswith("Building the trainer"))
    folder = tmp_path / "dist"
    assert "checkpoint" not in {p.name for p in (folder / "model").iterdir()}
    manifest = json.loads(next(folder.glob("*.json")).read_text("utf-8"))
    assert [t["proof"] for t in manifest["targets"].values()] == ["PROVEN"]
    sample = next((folder / "sample").iterdir()).read_text("utf-8")
    assert "checkpoint.compact" in sample and "mb_save_checkpoint" not in sample
    about = (folder / "README.md").read_text("utf-8")
    assert "`checkpoint.compact`, the parameters to start from |" in about and "pass 2 GB" in about
    crate = (folder / "integrations" / "cargo" / "examples" / "train.rs").read_text("utf-8")
    assert 'join("checkpoint.compact")' in crate and "trained.checkpoint" not in crate


@pytest.mark.usefixtures("_small_format")
def test_its_plan_is_wide_and_needs_64_bits() -> None:
    model = compile_model(TRANSFER, {}, {})
    assert is_wide(model.plan_bytes) and not model.checkpoint and model.compact_checkpoint
    held = frozen_bytes(model.plan)
    assert held > 100
    with pytest.raises(BadInput, match=f"parameters that do not train take {held:,} bytes.*Train fewer"):
        check_address_space(model.plan, model.largest, "trainer", ["wasm32"])


@pytest.mark.usefixtures("_small_format")
def test_what_a_compact_checkpoint_has_no_place_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_properties(*given: object) -> object:
        held = read_checkpoint(*given)  # type: ignore[arg-type]
        return type(held)(held.parameters, held.groups, {"epoch": 1}, held.nominal, held.seal)

    monkeypatch.setattr("minbuild.frontend.artifacts.read_checkpoint", with_properties)
    with pytest.raises(
        BadInput, match="bytes of parameters are more than .* format holds.*has properties besides"
    ):
        compile_model(TRANSFER, {}, {})


@pytest.mark.usefixtures("_small_format")
@pytest.mark.parametrize(
    "asked",
    [{"reference": Path("recording.npz")}, {"abi": "ort"}, {"integrations": ("cargo", "zephyr")}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_needs_one_file_is_refused_before_a_compiler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr("minbuild.pipeline.choose_encoding", None)
    option = "--integration zephyr" if "integrations" in asked else f"--{next(iter(asked))} "
    with pytest.raises(BadInput, match=f"^{option}.*less than 2 GB.*the parameters of .* bytes. Leave"):
        reduce(Request((TRANSFER,), tmp_path / "dist", **asked), Quiet())


def test_weights_that_do_not_train_shorten_the_runs_of_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes as long whether its weights are trained or not."""
    model = compile_model(TRANSFER, {}, {})

    def actions() -> int:
        return len(seeded_script(model.program, model.plan, model.checkpoint, model.registry).actions)

    whole = actions()
    plan = model.plan
    others = frozen_bytes(plan), len(plan.constants)
    assert min(others) > 0
    monkeypatch.setattr("minbuild.verify.differential.LARGE_STATE", plan.persistent_bytes + sum(others) + 1)
    assert actions() == whole
    monkeypatch.setattr("minbuild.verify.differential.LARGE_STATE", plan.persistent_bytes + sum(others))
    assert actions() < whole


def test_exports_beyond_a_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.planning.inference_export.MOST_IN_FILE", 100)
    with pytest.raises(BadInput, match=r"inference model takes [\d,]+ bytes, and an ONNX file ends at 2 GiB"):
        with_components(compile_model(TRANSFER, {}, {}), ["export"])


@pytest.mark.usefixtures("_small_format")
def test_trainers_for_python_programs_start_from_it_too() -> None:
    """Builds without a checkpoint's file have what sessions need, and small ones stay as they are."""
    artifacts = load(TRANSFER, registry())
    large = compile_artifacts(artifacts, b"", registry(), {}, {})
    assert large.compact_checkpoint and contents_of((large,)).compact_checkpoints


def test_small_parameters_have_no_compact_checkpoint_unasked() -> None:
    small = compile_artifacts(load(TRANSFER, registry()), b"", registry(), {}, {})
    assert not small.compact_checkpoint and not contents_of((small,)).compact_checkpoints


def test_constants_that_no_plan_holds_are_refused_before_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.planning.size_limits.MOST_CONSTANTS", 10)
    monkeypatch.setattr("minbuild.planning.compile.lower", None)
    with pytest.raises(
        BadInput,
        match=r"training_model.onnx: constants take [\d,]+ bytes.* ends at 10.*--frozen rest",
    ):
        compile_model(TRANSFER, {}, {}, options=PlanOptions())


@pytest.mark.skipif(os.name != "posix", reason="large plans are in memory here")
@pytest.mark.parametrize("more", [0, 3], ids=["whole words", "bytes behind the last word"])
def test_large_plans_in_files_are_those_in_memory(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Their constants stand in a file too, and are no whole words as a rule."""
    plan = compile_model(TRANSFER, {}, {}).plan
    sizes = dict.fromkeys(plan.symbols, 4)
    constants = bytes(range(16 + more))
    small = encode_plan(replace(plan, constants=constants), sizes)
    assert isinstance(small, bytes) and isinstance(plan.constants, bytes)
    monkeypatch.setattr("minbuild.ir.mapped.LEAST_IN_PIECES", 4)
    large = compile_model(TRANSFER, {}, {}).plan
    assert isinstance(large.constants, memoryview) and large == plan
    found = encode_plan(replace(large, constants=memoryview(constants)), sizes)
    assert isinstance(found, memoryview) and found == small


@pytest.mark.skipif(os.name != "posix", reason="large plans are in memory here")
def test_packages_of_plans_in_files_are_those_of_plans_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(contents_of((compile_model(TRANSFER, {}, {}),)), compact_checkpoints=False)
    monkeypatch.setattr("minbuild.codegen.library_builder.full_contents", lambda *_: few)
    packages = []
    for name, least in (("memory", 1 << 40), ("file", 4)):
        monkeypatch.setattr("minbuild.ir.mapped.LEAST_IN_PIECES", least)
        reduce(Request((TRANSFER,), tmp_path / name, analysis=False), Quiet())
        files = (p for p in (tmp_path / name).rglob("*") if p.is_file())
        packages.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
    assert packages[0] == packages[1]


def test_constants_of_all_graphs_that_no_plan_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(compile_model(TRANSFER, {}, {}).plan.constants)
    monkeypatch.setattr("minbuild.planning.compile.check_constants", lambda _: None)
    monkeypatch.setattr("minbuild.planning.size_limits.MOST_CONSTANTS", size - 1)
    monkeypatch.setattr("minbuild.planning.compile.encode_plan", None)
    with pytest.raises(
        BadInput,
        match=f"all graphs together: constants take {size} bytes, .* ends at {size - 1}.*--frozen rest",
    ):
        compile_model(TRANSFER, {}, {})
