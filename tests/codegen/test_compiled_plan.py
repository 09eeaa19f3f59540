"""A library that has its plan compiled in is what reads the same plan: same bits, same errors, no plan file."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import FREE, SMALL, Command, call, command_fixture, tree  # noqa: F401
from places import GOLDEN

from minbuild.analysis.error_codes import words
from minbuild.codegen.compiled_plan import compile_plan
from minbuild.codegen.compiled_plan_amounts import Amount, operation
from minbuild.codegen.library_builder import BuiltLibrary, build_checked
from minbuild.errors import Unsupported
from minbuild.options.build_options import BuildOptions, in_profile
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import decode_plan
from minbuild.planning.plan_outline import PlanOutline
from minbuild.toolchain import build_program, find_toolchain, host_target
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.library import Library, Session, TrainerError, arena_size
from minbuild.verify.differential import prove_equal, seeded_script

HOST = host_target()


def built(model: CompiledModel, profile: str = "balanced", **chosen: str) -> BuiltLibrary:
    build_options = BuildOptions(**{**vars_of(in_profile(profile)), **chosen})  # type: ignore[arg-type]
    contents = contents_of((model,), build_options=build_options)
    return build_checked(contents, model.registry, HOST, find_toolchain(build_options=build_options))


def vars_of(options: BuildOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__slots__}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A package with a free batch, and what the command said."""
    out = tmp_path_factory.mktemp("compiled") / "dist"
    said = call("reduce", FREE, "--out", out, "--flavor", "compiled", "--reference", FREE / "reference.npz")
    assert said.returncode == 0, said.stderr
    return out, said.stdout


@pytest.mark.parametrize("profile", ["balanced", "smallest"])
def test_it_computes_the_same_bits(profile: str) -> None:
    model = compile_model(FREE, {}, {})
    reads, has = built(model, profile), built(model, profile, flavor="compiled")
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    prove_equal(script, model.plan_bytes, has.built.shared, reads.built.shared, compiled=True)
    assert len(has.built.shared) < len(reads.built.shared) + len(model.plan_bytes)


def loaded(library: BuiltLibrary, folder: Path) -> Library:
    path = folder / "library"
    path.write_bytes(library.built.shared)
    return Library(path)


def test_plans_are_refused_and_wanted(tmp_path: Path) -> None:
    model = compile_model(SMALL, {}, {})
    (tmp_path / "has").mkdir()
    has = loaded(built(model, flavor="compiled"), tmp_path / "has")
    with pytest.raises(TrainerError, match="bad plan: the plan is compiled into this library: pass none"):
        Session(has, model.plan_bytes, model.checkpoint)
    with pytest.raises(TrainerError, match="not an intact, aligned plan"):
        arena_size(loaded(built(model), tmp_path), b"")
    assert words("E0") == "the plan is compiled into this library: pass none"
    assert words("E0 6") == "not an intact, aligned plan of version 6"


def test_its_errors_are_those_of_a_library_that_reads(tmp_path: Path) -> None:
    """Sizes, inputs, values and checkpoints are checked as ever."""
    model = compile_model(FREE, {}, {})
    said: list[list[str]] = []
    for flavor in ("interpreted", "compiled"):
        (tmp_path / flavor).mkdir()
        library = loaded(built(model, flavor=flavor), tmp_path / flavor)
        plan = b"" if flavor == "compiled" else model.plan_bytes
        said.append(list(errors(library, plan, model)))
    assert said[0] == said[1]
    assert len(said[0]) == 8


def errors(library: Library, plan: bytes, model: CompiledModel):  # type: ignore[no-untyped-def]
    def text(attempt) -> str:  # type: ignore[no-untyped-def]
        with pytest.raises(TrainerError) as caught:
            attempt()
        return str(caught.value).partition(" bytes aligned")[0].partition("needs")[0]

    yield text(lambda: Session(library, plan, model.checkpoint, [0]))
    yield text(lambda: Session(library, plan, model.checkpoint, [2**31 - 1]))
    yield text(lambda: Session(library, plan, model.checkpoint, [4, 4]))
    yield text(lambda: Session(library, plan, model.checkpoint[:-40], [4]))
    yield text(lambda: Session(library, plan, model.checkpoint, [4], np.zeros(64, np.uint8)))
    session = Session(library, plan, model.checkpoint, [4])
    first = model.program.procedures[0]
    shapes = [first.values[name].type for name in first.inputs]
    batch = [
        np.zeros([4 if not isinstance(d, int) else d for d in t.shape or ()], t.element.dtype) for t in shapes
    ]
    session.run(0, batch)
    yield text(lambda: session.run(0, [np.concatenate([b] * 2) for b in batch]))
    yield text(lambda: session.run(0, batch[:1]))
    yield text(lambda: session.run(7, batch))


def test_the_package_has_no_plan(package: tuple[Path, str]) -> None:
    out, said = package
    files = tree(out)
    assert "model/trainer.plan" not in files and "model/checkpoint" in files
    assert "src/runtime/compiled.cc" in files and "src/runtime/plan.cc" not in files
    manifest = json.loads(files["manifest.json"])
    assert manifest["flavor"] == "compiled" and manifest["plan"]["sizes"] == [32]
    assert "PROVEN" in said
    assert "`trainer.plan`" not in files["README.md"].decode()
    assert "mb_create_from_files(NULL, " in files["README.md"].decode()


def test_the_sample_runs(package: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = package
    sources = {"sample/train.c": (out / "sample/train.c").read_bytes()}
    header = "include/minbuild/trainer.h"
    sources[header] = (out / header).read_bytes()
    archive = (out / "lib" / str(HOST) / "libminbuild.a").read_bytes()
    program = tmp_path / "train"
    program.write_bytes(build_program(sources, archive, HOST, find_toolchain()))
    program.chmod(0o755)
    said = subprocess.run([program, out, "5"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.count("loss") == 7 and "reloaded at optimizer step 5" in said.stdout


def test_it_trains_from_python(package: tuple[Path, str]) -> None:
    out, _ = package
    state = CheckpointState.load_checkpoint(out / "model/checkpoint")
    module = Module(out, state)
    optimizer = Optimizer(None, module)
    recorded = np.load(FREE / "reference.npz")
    names = module.input_names()
    batch = [
        np.concatenate([recorded[f"in/{name}"][0]] * 12) for name in names
    ]  # more than it has memory for
    losses = []
    for _ in range(3):
        loss = module(*batch)
        losses.append(float(np.ravel(loss[0] if isinstance(loss, tuple) else loss)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0]


def test_check_knows_its_only_model(package: tuple[Path, str], minbuild: Command) -> None:
    out, _ = package
    assert minbuild("check", FREE, "--package", out).code == 0
    said = minbuild("check", GOLDEN / "mse", "--package", out)
    assert said.code == 3 and "runs no other" in said.err


def test_auto_takes_the_smaller(minbuild: Command, tmp_path: Path) -> None:
    said = minbuild("reduce", SMALL, "--out", tmp_path / "dist", "--flavor", "auto", "--profile", "smallest")
    assert said.code == 0, said.err
    assert "Flavor compiled saves" in " ".join(said.err.split())
    report = json.loads((tmp_path / "dist/report/report.json").read_text())
    assert any(note.startswith("Flavor compiled saves") for note in report["model"]["notes"])
    assert report["model"]["plan_bytes"] == 0
    assert not (tmp_path / "dist/model/trainer.plan").exists()


def test_several_models_have_several_plans(minbuild: Command, tmp_path: Path) -> None:
    said = minbuild("reduce", SMALL, FREE, "--out", tmp_path / "dist", "--flavor", "compiled")
    assert said.code == 2 and "a library has one plan" in said.err
    assert not (tmp_path / "dist").exists()


def test_places_are_never_below_those_that_are_computed() -> None:
    """What the device works out with one product is at least what stacking temporaries comes to, and no more than 16
    bytes above it for each of them."""
    generator = random.Random(1)
    for _ in range(300):
        amounts = [Amount(0, 0), Amount(1, 0), Amount(0, 48)]
        values = {s: [0, s, 48] for s in (1, 2, 3, 7, 32)}
        places = [0]
        for _ in range(12):
            size = len(amounts)
            factor = generator.choice([4, 12, 16, 40, 512])
            amounts += [Amount(0, factor), operation("Multiply", Amount(0, factor), amounts[1])]
            for s, known in values.items():
                known += [factor, factor * s]
            a, b = generator.choice(places), generator.choice([size, size + 1])
            amounts.append(operation("Stack", amounts[a], amounts[b]))
            for known in values.values():
                known.append(known[a] + -(-known[b] // 16) * 16)
            places.append(len(amounts) - 1)
            a, b = generator.choice(places), generator.choice(places)
            amounts.append(operation("Max", amounts[a], amounts[b]))
            for known in values.values():
                known.append(max(known[a], known[b]))
            places.append(len(amounts) - 1)
        for s, known in values.items():
            for place in places:
                given = -(-amounts[place].free * s // 16) * 16 + amounts[place].fixed
                assert given >= known[place]
                assert given % 16 == 0


def test_sizes_that_are_no_product_are_refused() -> None:
    with pytest.raises(Unsupported, match="no product with the free dimension"):
        operation("Multiply", Amount(1, 0), Amount(1, 0))


def test_the_tables_hold_the_plan() -> None:
    """What is compiled in is the plan that is read: its steps, with their kernels, tensors and parameters."""
    model = compile_model(FREE, {}, {})
    tables, contents = decode_plan(model.plan_bytes), contents_of((model,))
    compiled = compile_plan(model.plan_bytes, contents.kernels, kernel_names=False)
    code, kinds, params = compiled["columns"]["code"], compiled["kinds"], compiled["columns"]["params"]
    if compiled["param_values"]:
        params = [compiled["param_values"][number] for number in params]
    at = 0
    for kernel, words_at, _, accumulate, _ in tables["steps"].tolist():
        row, count, first, adds, _ = kinds[code[at]]
        expected = model.plan.kernels[kernel]
        assert contents.kernels[row] == expected and adds == accumulate
        assert (
            params[first : first + expected.params] == tables["params"].tolist()[words_at:][: expected.params]
        )
        at += 1 + count
    assert at == len(code)


def test_an_outline_survives_the_manifest() -> None:
    outline = PlanOutline.of(compile_model(FREE, {}, {}).plan_bytes)
    assert PlanOutline.from_dict(json.loads(json.dumps(outline.as_dict()))) == outline


def test_straight_calls_compute_the_same_bits() -> None:
    """Every kernel as a straight call, with a free dimension and with fixed ones."""
    for sizes in ({}, {"batch": 3}):
        model = compile_model(FREE, sizes, {})
        straight = replace(model, straight=frozenset(k.symbol for k in model.plan.kernels))
        reads, has = built(model), built(straight, flavor="compiled")
        table = has.sources["src/kernel_table.cc"].decode()
        assert table.count("MB_STEP((") >= len(model.plan.kernels)
        script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
        prove_equal(script, model.plan_bytes, has.built.shared, reads.built.shared, compiled=True)


def test_errors_of_straight_calls_name_their_kernels(tmp_path: Path) -> None:
    model = compile_model(SMALL, {}, {})
    straight = replace(model, straight=frozenset(k.symbol for k in model.plan.kernels))
    found = []
    for name, each in (("tables", model), ("straight", straight)):
        (tmp_path / name).mkdir()
        session = Session(loaded(built(each, flavor="compiled"), tmp_path / name), b"", model.checkpoint)
        first = model.program.procedures[0]
        types = [first.values[n].type for n in first.inputs]
        with pytest.raises(TrainerError) as caught:  # labels that no class has
            session.run(0, [np.full([int(d) for d in t.shape or ()], 99, t.element.dtype) for t in types])
        found.append(str(caught.value))
    assert found[0] == found[1]


@pytest.mark.targets
def test_the_smaller_step_calls_are_taken_and_verified_step_by_step(
    minbuild: Command, tmp_path: Path
) -> None:
    options = ("--flavor", "compiled", "--step-calls", "least", "--loop-variants", "one", "--no-analysis")
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "--out", out, *options, "--time", "--target", HOST, "--target", "wasm32")
    assert said.code == 0 and "NOT PROVEN" not in said.out, said.err
    report = json.loads((out / "report/report.json").read_text())
    (note,) = [n for n in report["model"]["notes"] if n.startswith("Step calls")]
    assert "straight, which saves" in note
    assert "MB_STEP((" in (out / "src/kernel_table.cc").read_text()
