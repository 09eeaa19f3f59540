"""From artifacts to a package: what is in it, that it works, that it is the same every time."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from commands import FREE, GOLDEN, SMALL, Command, call, command_fixture, copy_of, tree, with_manifest  # noqa: F401

from minbuild import __version__, assets
from minbuild.codegen import atomic_write as destination
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir import Package
from minbuild.toolchain import build_program, find_toolchain, host_target, run_program
from minbuild.training.library import EVAL, TRAIN, Library, Session

HOST = str(host_target())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], str, str]:
    """A package of the set with a free batch, its files, and what the command said."""
    out = tmp_path_factory.mktemp("package") / "dist"
    said = call(
        "reduce",
        FREE,
        "--out",
        out,
        "--reference",
        FREE / "reference.npz",
        "--max-dim",
        "batch=16",
        "--report",
        "full",
    )
    assert said.returncode == 0, said.stderr
    return out, tree(out), said.stdout, said.stderr


Made = tuple[Path, dict[str, bytes], str, str]


def test_everything_is_there(package: Made) -> None:
    _, files, out, err = package
    assert {
        "include/minbuild/trainer.h",
        "include/minbuild/learning.h",
        "include/minbuild/federated.h",
        "src/minbuild/config.h",
        "src/kernel_table.cc",
        "src/kernels/gemm.cc",
        "CMakeLists.txt",
        f"lib/{HOST}/libminbuild.so",
        f"lib/{HOST}/libminbuild.a",
        "model/trainer.plan",
        "model/checkpoint",
        "sample/train.c",
        "README.md",
        "manifest.json",
        "report/report.json",
        "report/report.md",
        "report/report.html",
    } <= set(files)
    assert "src/kernels/conv.cc" not in files
    assert files["model/checkpoint"] == (FREE / "checkpoint").read_bytes()
    size = len(files[f"lib/{HOST}/libminbuild.so"])
    assert f"trainer for {HOST}: {size:,} B" in out
    assert "identical bits on seeded batches of 3 and 4" in " ".join(out.split())
    assert "times the reference's own noise" in " ".join(out.split())
    assert (
        "above the least for this order of steps" in err
        and "at batch 16" in err
        and "Worst deviations" in err
    )


def test_the_manifest_tells_every_file(package: Made) -> None:
    _, files, _, _ = package
    manifest = json.loads(files["manifest.json"])
    assert manifest["tool"] == "minbuild" and manifest["minbuild"] == __version__
    assert manifest["largest"] == {"batch": 16} and manifest["fixed"] == {}
    digests = {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "manifest.json"
    }
    assert {name: entry["sha256"] for name, entry in manifest["files"].items()} == digests
    artifacts = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in FREE.iterdir()}
    assert manifest["model"] and manifest["model"].items() <= artifacts.items()
    library = manifest["targets"][HOST]["library"]
    assert library in files


def test_the_report_is_about_these_files(package: Made) -> None:
    _, files, _, _ = package
    report = json.loads(files["report/report.json"])
    jsonschema.validate(report, json.loads((assets.root("schemas") / "report.schema.json").read_text()))
    target = report["targets"][0]
    assert target["trimmed"]["file"] == len(files[f"lib/{HOST}/libminbuild.so"]) < target["full"]["file"]
    assert sum(row["bytes"] for row in target["rows"]) == target["trimmed"]["file"]
    assert report["model"]["plan_bytes"] == len(files["model/trainer.plan"])
    assert target["verification"]["worst"] < 4


def test_nothing_tells_of_this_machine(package: Made) -> None:
    out, files, _, _ = package
    for name, data in files.items():
        for secret in (str(out.parent), str(Path.home()), str(FREE.parent)):
            assert len(secret) < 6 or secret.encode() not in data, name


def test_the_package_trains(package: Made) -> None:
    out, files, _, _ = package
    session = Session(
        Library(out / f"lib/{HOST}/libminbuild.so"), files["model/trainer.plan"], files["model/checkpoint"]
    )
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((16, 12)).astype(np.float32), random.integers(0, 5, 16)
    session.learning_rate = 0.01
    losses = []
    for _ in range(20):
        losses.append(float(session.run(TRAIN, [x, labels])[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    assert losses[-1] < 0.9 * losses[0]
    assert float(session.run(EVAL, [x, labels])[0]) < losses[-1]
    assert read_checkpoint(session.checkpoint(True)).groups[0].step == 20


@pytest.mark.parametrize("name", ["dense", "embedding"])
def test_the_sample_program_runs(package: Made, tmp_path: Path, name: str) -> None:
    folder, files, _, _ = package
    if name != "dense":
        assert call("reduce", GOLDEN / name, "-o", tmp_path / name).returncode == 0
        files = tree(tmp_path / name)
    sources = {n: files[n] for n in ("sample/train.c", "include/minbuild/trainer.h")}
    program = build_program(sources, files[f"lib/{HOST}/libminbuild.a"], host_target(), find_toolchain())
    model = {n: files[n] for n in ("model/trainer.plan", "model/checkpoint")}
    ran = run_program(program, (".", "12"), target=host_target(), files=model)
    assert ran.code == 0, ran.err
    lines = ran.out.decode().splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert "reloaded at optimizer step 12" in lines
    evaluation = next(line for line in lines if line.startswith("evaluation")).replace(",", "").split()
    assert evaluation[2] == evaluation[4]
    following = next(line for line in lines if line.startswith("next")).replace(",", "").split()
    assert following[2] == following[4]
    missing = run_program(program, ("nowhere",), target=host_target(), files=model)
    assert missing.code == 1 and "create" in missing.err


def test_cmake_builds_it(package: Made, tmp_path: Path) -> None:
    if not (shutil.which("cmake") and shutil.which("c++")):
        pytest.skip("needs cmake and a compiler")
    folder = tmp_path / "package"
    shutil.copytree(package[0], folder)
    for command in (("cmake", "-S", ".", "-B", "build"), ("cmake", "--build", "build", "-j2")):
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr + ran.stdout
        assert "warning" not in ran.stderr
    ran = subprocess.run(["build/train", ".", "3"], cwd=folder, capture_output=True, text=True, check=True)
    assert "reloaded at optimizer step 3" in ran.stdout
    assert not any(w in (folder / "build/libminbuild.so").read_bytes() for w in (b"libstdc++", b"__cxa_"))


def test_the_same_input_gives_the_same_bytes(
    minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copy_of(SMALL, tmp_path / "renamed artifacts")
    (tmp_path / "elsewhere").mkdir()
    assert minbuild("reduce", SMALL, "-o", tmp_path / "one").code == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = minbuild("reduce", copied, "--out", "deep/er/two", "--json")
    assert said.code == 0
    one, two = tree(tmp_path / "one"), tree(tmp_path / "elsewhere/deep/er/two")
    assert set(one) == set(two)
    assert [name for name in one if one[name] != two[name]] == []
    assert said.out == two["report/report.json"].decode()  # standard output is JSON and nothing else
    assert sorted(p.name for p in (tmp_path / "elsewhere/deep/er").iterdir()) == ["two"]


def test_a_fixed_dimension_makes_it_smaller(minbuild: Command, package: Made, tmp_path: Path) -> None:
    said = minbuild("reduce", FREE, "-o", tmp_path / "d", "--dim", "batch=8", "--verbose")
    assert said.code == 0
    fixed, free = tree(tmp_path / "d"), package[1]
    name = f"lib/{HOST}/libminbuild.so"
    assert len(fixed[name]) < len(free[name])
    assert len(fixed["model/trainer.plan"]) < len(free["model/trainer.plan"])
    assert json.loads(fixed["manifest.json"])["fixed"] == {"batch": 8}
    passes = [line for line in said.err.splitlines() if line.strip().startswith("pass ")]
    assert [line.split()[1] for line in passes] == [f"{i}:" for i in range(1, len(passes) + 1)] and passes


def test_absent_graphs_are_noted(minbuild: Command, tmp_path: Path) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    for name in ("eval_model.onnx", "optimizer_model.onnx"):
        (artifacts / name).unlink()
    said = minbuild("reduce", artifacts, "--out", tmp_path / "dist", "--no-analysis")
    assert said.code == 0
    assert "No evaluation model" in said.err and "No optimizer model" in said.err
    said = minbuild("reduce", artifacts, "--out", tmp_path / "dist", "--no-analysis", "--graphs", "train")
    assert said.code == 0 and "No " not in said.err


def test_an_old_package_is_replaced(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    assert minbuild("reduce", SMALL, "-o", out).code == 0
    first = tree(out)
    assert minbuild("reduce", SMALL, "-o", out, "--dim", "batch=3").code != 0  # it has no free dimension
    assert tree(out) == first
    assert minbuild("reduce", SMALL, "-o", out, "--finite-checks", "loss").code == 0
    assert tree(out) != first
    assert minbuild("reduce", SMALL, "-o", out).code == 0
    assert tree(out) == first
    assert [p.name for p in tmp_path.iterdir()] == ["dist"]


def test_a_trajectory_of_another_model_is_refused(minbuild: Command, tmp_path: Path) -> None:
    with np.load(SMALL / "reference.npz") as stored:
        arrays = {n: stored[n] for n in stored.files}
    np.savez(tmp_path / "wrong.npz", **{**arrays, "loss": arrays["loss"] + np.float32(0.01)})
    said = minbuild("reduce", SMALL, "-o", tmp_path / "d", "--reference", tmp_path / "wrong.npz")
    assert said.code == 6 and "does not follow it" in said.err and "loss" in said.err
    assert not (tmp_path / "d").exists()


# ---------------------------------------------------------------------------- all or nothing


FILES = with_manifest({"a/b": b"new"})


def test_a_failed_write_leaves_the_old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "exchange", lambda left, right: False)  # the system cannot in one step
    out = tmp_path / "dist"
    destination.write_package(out, Package(with_manifest({"a/b": b"old"})))
    before = tree(out)
    for where in ("write_bytes", "rename"):
        for error in (OSError(28, "No space left on device"), PermissionError(13, "no"), KeyboardInterrupt()):
            real, calls = getattr(Path, where), []

            def fail(self: Path, *rest: object, real=real, calls=calls, error=error):  # type: ignore[no-untyped-def]
                calls.append(self)
                if len(calls) == 2:  # with rename: the old one is away, the new one is not yet there
                    raise error
                return real(self, *rest)

            with monkeypatch.context() as patch:
                patch.setattr(Path, where, fail)
                expected = BadInput if isinstance(error, OSError) else KeyboardInterrupt
                with pytest.raises(expected) as raised:
                    destination.write_package(out, Package(FILES))
            assert tree(out) == before and [p.name for p in tmp_path.iterdir()] == ["dist"]
            if isinstance(error, OSError):
                assert "--out" in str(raised.value) and error.strerror in str(raised.value)


def test_folders_made_on_the_way_go_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match="Free some space"):
        destination.write_package(tmp_path / "a/b/dist", Package(FILES))
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    destination.write_package(tmp_path / "link", Package(FILES))
    assert (tmp_path / "link").is_symlink() and tree(tmp_path / "real") == FILES


def test_permissions_are_those_of_any_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    destination.write_package(tmp_path / "dist", Package(FILES))
    assert (tmp_path / "dist").stat().st_mode == (tmp_path / "plain").stat().st_mode
