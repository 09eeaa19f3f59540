"""Several models on one library, and operators that are held for models to come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from authored import FORWARD  # noqa: F401  (puts the golden models on the path)
from commands import GOLDEN, SMALL, Command, command_fixture, copy_of, tree  # noqa: F401
from forward import FLOAT, Net

from minbuild import assets
from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.compat.ort_config.collect import requirements
from minbuild.compat.ort_config.grammar import parse_config
from minbuild.errors import BadInput
from minbuild.pipeline import names_of
from minbuild.planning.compile import compile_model, compile_models
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.plan_encoding import WIDE_VERSION
from minbuild.toolchain import build_program, find_toolchain, host_target, run_program
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.library import TRAIN, Library, Session

HOST = str(host_target())
NAMES = ("dense", "conv")
Made = tuple[Path, dict[str, bytes], str, str]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A package of two models, its files, and what the command said."""
    from commands import call

    out = tmp_path_factory.mktemp("several") / "dist"
    said = call("reduce", *(GOLDEN / name for name in NAMES), "-o", out, "--max-dim", "batch=16")
    assert said.returncode == 0, said.stderr
    return out, tree(out), said.stdout, said.stderr


def test_each_model_keeps_its_files(package: Made) -> None:
    _, files, _, _ = package
    for name in NAMES:
        assert files[f"model/{name}/checkpoint"] == (GOLDEN / name / "checkpoint").read_bytes()
        alone = compile_model(GOLDEN / name, {}, {"batch": 16})
        assert files[f"model/{name}/trainer.plan"] == alone.plan_bytes
        assert f"sample/train_{name}.c" in files
    assert "model/trainer.plan" not in files and "sample/train.c" not in files
    assert sum(name.startswith("lib/") for name in files) == 2


def test_kernels_are_shared(package: Made) -> None:
    _, files, _, _ = package
    manifest = json.loads(files["manifest.json"])
    each = [{k.symbol for k in compile_model(GOLDEN / name, {}, {}).plan.kernels} for name in NAMES]
    assert set(manifest["holds"]["kernels"]) == each[0] | each[1]
    assert each[0] & each[1] and each[0] - each[1] and each[1] - each[0]
    assert set(manifest["models"]) == set(NAMES)
    assert len(json.dumps(manifest["holds"])) < 2000


def test_the_report_names_each_model(package: Made) -> None:
    _, files, out, err = package
    report = json.loads(files["report/report.json"])
    jsonschema.validate(report, json.loads((assets.root("schemas") / "report.schema.json").read_text()))
    assert [model["name"] for model in report["models"]] == list(NAMES)
    whole, models, target = report["model"], report["models"], report["targets"][0]
    assert whole["plan_bytes"] == sum(m["plan_bytes"] for m in models)
    assert whole["persistent"] == max((m["persistent"] for m in models), key=lambda p: p["total"])
    peak = max(arena["peak"] for m in models for arena in m["arenas"])
    assert max(arena["peak"] for arena in whole["arenas"]) == peak
    session = target["session"]["total"]
    assert session > 0
    assert target["ram"] == target["static"]["total"] + peak + whole["persistent"]["total"] + session
    assert sum(row["bytes"] for row in target["rows"]) == target["trimmed"]["file"]
    gemm = next(row for row in target["rows"] if row["name"] == "gemm")
    assert {node.split(":")[0] for node in gemm["nodes"]} == set(NAMES)
    assert all(model["name"] in out for model in models)
    for text in (files["report/report.md"].decode(), files["report/report.html"].decode()):
        assert "Models" in text
        for model in models:
            assert model["name"] in text and f"{model['plan_bytes']:,}" in text
    assert "conv: Memory for temporaries at batch 16" in err


def test_each_model_is_proven(package: Made) -> None:
    text = json.loads(package[1]["report/report.json"])["targets"][0]["verification"]["text"]
    for name in NAMES:
        assert f"{name}: trimmed and full build give identical bits" in text


def test_each_model_trains(package: Made) -> None:
    out, files, _, _ = package
    for name in NAMES:
        with np.load(GOLDEN / name / "reference.npz") as arrays:
            meta = json.loads((GOLDEN / name / "meta.json").read_text())
            batch = [arrays[f"in/{n}"][0] for n in meta["input_names"]]
            wanted = float(arrays["loss"].ravel()[0])
        for place in (out / "model" / name, out / "model" / name / "trainer.plan"):
            state = CheckpointState.load_checkpoint(out / "model" / name / "checkpoint")
            module = Module(place, state)
            loss = module(*batch)
            assert float(np.ravel(loss if isinstance(loss, np.ndarray) else loss[0])[0]) == pytest.approx(
                wanted, 1e-5
            )
        Optimizer(out / "model" / name, module).step()
    with pytest.raises(BadInput, match="model/conv, .*model/dense"):
        Module(out, state)


def test_the_samples_run(package: Made) -> None:
    _, files, _, _ = package
    for name in NAMES:
        sources = {n: files[n] for n in (f"sample/train_{name}.c", "include/minbuild/trainer.h")}
        program = build_program(sources, files[f"lib/{HOST}/libminbuild.a"], host_target(), find_toolchain())
        model = {n: data for n, data in files.items() if n.startswith(f"model/{name}/")}
        ran = run_program(program, (".", "4"), target=host_target(), files=model)
        assert ran.code == 0 and "reloaded at optimizer step 4" in ran.out.decode(), ran.err
        assert f"The model {name}" in files["README.md"].decode()
        assert f"add_executable(train_{name} " in files["CMakeLists.txt"].decode()


def test_the_second_model_is_the_same_whatever_the_first(minbuild: Command, tmp_path: Path) -> None:
    assert minbuild("reduce", SMALL, GOLDEN / "mse", "-o", tmp_path / "a").code == 0
    assert minbuild("reduce", SMALL, GOLDEN / "mse", "-o", tmp_path / "b").code == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_names_are_never_the_same(tmp_path: Path) -> None:
    folders = []
    for parent in ("x", "y", "z"):
        (tmp_path / parent).mkdir()
        folders.append(copy_of(SMALL, tmp_path / parent / "my model"))
    models = compile_models(folders, {}, {})
    assert names_of(folders, models) == ("my_model", "my_model-2", "my_model-3")
    assert names_of(folders[:1], models[:1]) == ("trainer",)


def test_sizes_go_to_the_models_that_have_them(minbuild: Command, tmp_path: Path) -> None:
    free, fixed = compile_models([GOLDEN / "dense", SMALL], {}, {"batch": 4})
    assert free.largest == {"batch": 4} and fixed.largest == {}
    with pytest.raises(BadInput, match="--dim rows=3: the model has no such free dimension"):
        compile_models([GOLDEN / "dense", SMALL], {"rows": 3}, {})
    said = minbuild(
        "reduce", SMALL, GOLDEN / "mse", "-o", tmp_path / "d", "--reference", SMALL / "reference.npz"
    )
    assert said.code == 2 and "is of one model" in said.err
    assert minbuild("reduce", SMALL, GOLDEN / "mse", "-o", SMALL).code == 2


# -------------------------------------------------------------------------------------- what is held besides


@pytest.fixture(scope="module")
def small():  # type: ignore[no-untyped-def]
    return compile_model(SMALL, {}, {})


def symbols(small, extra: ExtraRequirements) -> set[str]:  # type: ignore[no-untyped-def]
    return {k.symbol for k in contents_of((small,), extra).kernels}


def test_operators_can_be_added(small) -> None:  # type: ignore[no-untyped-def]
    before = symbols(small, ExtraRequirements())
    both = ExtraRequirements(
        ("Conv", "com.microsoft:ConvGrad", "MaxPoolGrad", "com.microsoft:SGDOptimizerV2")
    )
    added = symbols(small, both) - before
    assert {"conv<float>", "conv<double>", "max_pool_grad<float, uint8_t>", "sgd<float>"} <= added
    features = contents_of((small,), both).features
    assert {"conv.groups", "conv.strides"} <= features


def test_types_bound_what_is_added(small) -> None:  # type: ignore[no-untyped-def]
    added = symbols(small, ExtraRequirements(("Conv",), types=("float", "int64"))) - symbols(
        small, ExtraRequirements()
    )
    functions = ("conv", "conv_packed", "depthwise_conv", "grouped_conv_packed", "winograd_conv_packed")
    assert added == {f"{k}<float>" for k in functions}
    with pytest.raises(BadInput, match="--types double: the models need .*float.*Add float"):
        symbols(small, ExtraRequirements(types=("double",)))
    with pytest.raises(BadInput, match="--types flaot: no element type"):
        symbols(small, ExtraRequirements(types=("flaot",)))


def test_a_configuration_is_held(small) -> None:  # type: ignore[no-untyped-def]
    required = requirements([GOLDEN / "conv"])
    found = symbols(small, ExtraRequirements(required=required))
    wanted = {k.symbol for k in compile_model(GOLDEN / "conv", {}, {}).plan.kernels}
    assert wanted <= found and "conv<double>" not in found
    assert not any(
        s.startswith("conv<") for s in symbols(small, ExtraRequirements(required=required, exclude=_CONV))
    )
    with pytest.raises(BadInput, match="--ort-config Nonsense: no such operator"):
        symbols(small, ExtraRequirements(required=parse_config("ai.onnx;13;Nonsense", "f")))


def test_a_package_is_ready_for_a_model_to_come(minbuild: Command, tmp_path: Path) -> None:
    """With nothing but the configuration that ONNX Runtime's converter wrote for it."""
    config = GOLDEN / "conv" / "required_operators_and_types.with_runtime_opt.config"
    assert minbuild("reduce", SMALL, "-o", tmp_path / "d", "--ort-config", config).code == 0
    said = minbuild("check", GOLDEN / "conv", "-p", tmp_path / "d", "--dim", "batch=4")
    assert said.code == 0, said.err


_CONV = ("Conv", "com.microsoft:FusedConv", "com.microsoft:ConvGrad")


def test_operators_that_are_needed_cannot_be_excluded(small, minbuild: Command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match="--exclude-op Gemm: training_model.onnx: node '.*' needs it"):
        symbols(small, ExtraRequirements(exclude=("Gemm",)))
    assert symbols(small, ExtraRequirements(exclude=("Conv",))) == symbols(small, ExtraRequirements())
    for option in ("--exclude-op", "--include-op"):
        said = minbuild("reduce", SMALL, "-o", tmp_path / "d", option, "convgrad")
        assert said.code == 2 and "Did you mean com.microsoft:ConvGrad?" in said.err


def test_what_adds_nothing_is_told(small) -> None:  # type: ignore[no-untyped-def]
    told: list[str] = []
    contents_of((small,), ExtraRequirements(("Dropout",)), told.append)
    assert len(told) == 1 and told[0].startswith("Dropout: ")


def test_progress_names_the_models(package: Made) -> None:
    assert all(f"Proving {name} for {HOST}" in package[3] for name in NAMES)


# -------------------------------------------------------------------------------------- checking a package


def test_a_package_says_what_it_can_train(minbuild: Command, package: Made, tmp_path: Path) -> None:
    out, files, _, _ = package
    plan = tmp_path / "new.plan"
    said = minbuild("check", GOLDEN / "dense", "-p", out, "--write-plan", plan, "--max-dim", "batch=4")
    assert said.code == 0 and f"{out} can train it" in said.out
    library = Library(out / f"lib/{HOST}/libminbuild.so")
    session = Session(library, plan.read_bytes(), (GOLDEN / "dense" / "checkpoint").read_bytes())
    meta = json.loads((GOLDEN / "dense" / "meta.json").read_text())
    with np.load(GOLDEN / "dense" / "reference.npz") as arrays:
        inputs = [arrays[f"in/{n}"][0][:4] for n in meta["input_names"]]
    assert np.isfinite(session.run(TRAIN, inputs)[0]).all()
    assert minbuild("check", SMALL, GOLDEN / "conv", "-p", out).code == 0


LACKING = [
    ("embedding", ("lacks the kernel gather<", "node '")),
    ("residual", ("lacks the kernel batch_norm_grad<float>", "lacks the feature 'depthwise' of conv.cc")),
]


@pytest.mark.parametrize("name,texts", LACKING)
def test_a_package_says_what_it_lacks(
    minbuild: Command, package: Made, name: str, texts: tuple[str, ...]
) -> None:
    out = package[0]
    said = minbuild("check", GOLDEN / name, "-p", out)
    assert said.code == 3 and all(text in said.err for text in texts)
    plan = compile_model(GOLDEN / name, {}, {}).plan_bytes
    with pytest.raises(Exception, match="kernel|feature|version"):  # the library refuses it too
        Session(
            Library(out / f"lib/{HOST}/libminbuild.so"), plan, (GOLDEN / name / "checkpoint").read_bytes()
        )


def _images(folder: Path, size: int, classes: int) -> Path:
    """Artifacts of a classifier: a large convolution if images are, and a large last layer if classes are many."""
    net, name = Net(8), f"{size}-{classes}"
    x = net.add("Relu", [net.conv("input", "conv1", (3, 48))])
    x = net.add("Relu", [net.conv(x, "conv2", (48, 48))])
    x = net.add(
        "Flatten", [net.add("GlobalAveragePool", [net.conv(x, "conv3", (48, 200), kernel=1)])], axis=1
    )
    net.linear(x, "fc", 200, classes, "output")
    model = net.model({"input": (FLOAT, ("batch", 3, size, size))}, {"output": (FLOAT, ("batch", classes))})
    onnx.save(model, folder / f"{name}.onnx")
    write_artifacts(make_artifacts(folder / f"{name}.onnx", Recipe(loss="cross-entropy")), folder / name)
    return folder / name


def test_a_library_for_other_sizes_serves(minbuild: Command, tmp_path: Path) -> None:
    """By the kernels that it has, where one of its own would be faster, and with the same results."""
    large, small = _images(tmp_path, 60, 190), _images(tmp_path, 9, 5)
    out, plan, random = tmp_path / "dist", tmp_path / "new.plan", np.random.default_rng(3)
    options = "--no-analysis", "--threads", "off"  # the full library is then that of most tests
    assert minbuild("reduce", large, small, "--out", tmp_path / "both", *options).code == 0
    both = Library(tmp_path / f"both/lib/{HOST}/libminbuild.so")
    functions = {}
    for own, other, size in ((large, small, 9), (small, large, 60)):
        assert minbuild("reduce", own, "--out", out, *options).code == 0
        said = minbuild("check", other, "-p", out, "--write-plan", plan)
        assert said.code == 0 and "can train it" in said.out, said.err
        checkpoint = (other / "checkpoint").read_bytes()
        best = (tmp_path / f"both/model/{other.name}/trainer.plan").read_bytes()
        batch = [random.standard_normal((3, 3, size, size)).astype(np.float32), np.array([1, 4, 0])]
        found = []
        for library, data in ((Library(out / f"lib/{HOST}/libminbuild.so"), plan.read_bytes()), (both, best)):
            session = Session(library, data, checkpoint)
            losses = [session.run(TRAIN, batch)[0].item()]
            session.optimizer_step()
            found.append((*losses, session.run(TRAIN, batch)[0].item()))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
        functions[own] = set(json.loads((out / "manifest.json").read_text())["holds"]["kernels"])
    assert {"conv_packed<float>", "gemm_packed<float>"} <= functions[large]
    assert not functions[large] & {"conv<float>", "gemm<float>"}
    assert not any("packed" in function for function in functions[small])


def test_sizes_that_are_fixed_stay_so(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "d"
    assert minbuild("reduce", GOLDEN / "dense", "-o", out, "--dim", "batch=8").code == 0
    said = minbuild("check", GOLDEN / "dense", "-p", out)
    assert said.code == 3 and "knows no free dimensions. Fix them with --dim" in said.err
    assert minbuild("check", GOLDEN / "dense", "-p", out, "--dim", "batch=3").code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["holds"]["kernels"] = dict.fromkeys(manifest["holds"]["kernels"], 1)
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert "takes other arguments" in minbuild("check", GOLDEN / "dense", "-p", out, "--dim", "batch=3").err
    manifest["holds"]["plan"] = 1
    (out / "manifest.json").write_text(json.dumps(manifest))
    said = minbuild("check", GOLDEN / "dense", "-p", out)
    assert said.code == 3 and "reads plans of version 1" in said.err
    del manifest["holds"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    said = minbuild("check", GOLDEN / "dense", "-p", out)
    assert said.code == 2 and "does not say what the library holds" in said.err


def test_wrong_checks(minbuild: Command, package: Made, tmp_path: Path) -> None:
    assert minbuild("check", SMALL, "-p", tmp_path).code == 2
    assert minbuild("check", SMALL, SMALL, "-p", package[0], "--write-plan", tmp_path / "p").code == 2
    assert minbuild("check", SMALL, "-p", package[0], "--write-plan", tmp_path / "no" / "p").code == 2
    said = minbuild("check", GOLDEN / "embedding", SMALL, "-p", package[0])
    assert said.code == 3 and f"{SMALL}: " in said.out and f"{GOLDEN / 'embedding'}: " in said.err


def test_a_package_is_checked_for_what_it_was_made_for(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    made = minbuild("reduce", GOLDEN / "dense", "--out", out, "--no-analysis", "--graphs", "evaluate")
    assert made.code == 0, made.err
    said = minbuild("check", GOLDEN / "dense", "-p", out, "--write-plan", tmp_path / "plan")
    assert said.code == 0 and "can evaluate it: plan" in said.out
    assert (tmp_path / "plan").read_bytes() == (out / "model/trainer.plan").read_bytes()
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    manifest["graphs"] = ["train", "evaluate", "optimize"]
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert minbuild("check", GOLDEN / "dense", "-p", out).code == 3
    manifest["graphs"] = []
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert "no graphs" in minbuild("check", GOLDEN / "dense", "-p", out).err


def test_a_package_with_fused_updates_is_checked_for_them(minbuild: Command, tmp_path: Path) -> None:
    out, plan = tmp_path / "dist", tmp_path / "plan"
    made = minbuild("reduce", SMALL, "--out", out, "--no-analysis", "--updates", "fused")
    assert made.code == 0, made.err
    said = minbuild("check", SMALL, "-p", out, "--write-plan", plan)
    assert said.code == 0, said.err
    assert plan.read_bytes() == (out / "model/trainer.plan").read_bytes()
    said = minbuild("check", SMALL, "-p", out, "--updates", "separate")
    assert said.code == 2 and f"--updates separate: those of {out} are fused." in said.err


def test_a_package_of_wide_plans_says_so(minbuild: Command, package: Made, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    shutil.copytree(package[0], out)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    manifest["holds"]["plan"] += WIDE_VERSION
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    said = minbuild("check", SMALL, "-p", out)
    assert (
        said.code == 3 and "reads plans with 64-bit sizes, and that of this model has 32-bit ones" in said.err
    )
