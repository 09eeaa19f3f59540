"""Whatever is wrong with what the user gives: one paragraph, the right exit code, and nothing left behind."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from commands import FREE, SMALL, Command, Said, command_fixture, copy_of, tree  # noqa: F401
from interrupts import heed_interrupts
from onnx import TensorProto, helper
from places import ROOT

ARTIFACTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def refused(said: Said, code: int, *words: str) -> None:
    assert said.code == code, said.err
    assert said.out == ""
    text = said.err[said.err.index("error: ") :]
    assert "Traceback" not in said.err and "internal error" not in said.err
    assert "\n\n" not in text and len(text) < 1500
    assert text.rstrip().endswith((".", ")"))
    for word in words:
        assert word in text, text


@pytest.fixture
def attempt(minbuild: Command, tmp_path: Path) -> Callable[..., Said]:
    """reduce into a folder that must not exist afterwards, beside artifacts that must not change."""

    def run(artifacts: Path, *more: object) -> Said:
        before = tree(tmp_path)
        said = minbuild("reduce", artifacts, "-o", tmp_path / "dist", *more)
        assert not (tmp_path / "dist").exists()
        assert tree(tmp_path) == before
        return said

    return run


def test_no_folder(attempt: Callable[..., Said], tmp_path: Path) -> None:
    refused(attempt(tmp_path / "nowhere"), 2, "no such folder")
    refused(attempt(SMALL / "checkpoint"), 2, "checkpoint: not a readable ONNX model")
    (tmp_path / "empty").mkdir()
    refused(attempt(tmp_path / "empty"), 2, "training_model.onnx")


def test_loss_scales_are_for_forward_models(attempt: Callable[..., Said]) -> None:
    for option in ("--loss-scale", "--growth-interval"):
        refused(attempt(SMALL, option, "4"), 2, option, "--loss")


def test_an_optimizer_is_for_forward_models(attempt: Callable[..., Said]) -> None:
    """Artifacts keep their own, so another one would be ignored."""
    refused(attempt(SMALL, "--optimizer", "sgd"), 2, "--optimizer", "--loss", "have their own optimizer")


@pytest.mark.parametrize("command", ["reduce", "artifacts"])
def test_artifacts_in_place_of_a_forward_model(minbuild: Command, tmp_path: Path, command: str) -> None:
    said = minbuild(command, SMALL, "--loss", "mse", "--out", tmp_path / "made")
    refused(said, 2, SMALL.name, "is a folder", "without --loss")


@pytest.mark.parametrize(
    "words,cure",
    [
        (("why", "conv", "--package"), "minbuild reduce wrote"),
        (("check", SMALL, "--package"), "minbuild reduce wrote"),
        (("ort-config", SMALL, "--check"), "a configuration file"),
        (("diff",), "report.json, or a history"),
        (("reduce", SMALL, "-o", "dist", "--settings"), "a file with settings"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_files_of_other_kinds(
    minbuild: Command, tmp_path: Path, words: tuple[object, ...], cure: str
) -> None:
    refused(minbuild(*words, tmp_path / "gone"), 2, "gone", "no such file", cure)


@pytest.mark.parametrize("name", ["training_model.onnx", "checkpoint"])
def test_missing_file(attempt: Callable[..., Said], tmp_path: Path, name: str) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    (artifacts / name).unlink()
    refused(attempt(artifacts), 2, name)


def test_training_model_in_place_of_the_optimizer(attempt: Callable[..., Said], tmp_path: Path) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    (artifacts / "optimizer_model.onnx").write_bytes((artifacts / "training_model.onnx").read_bytes())
    refused(
        attempt(artifacts), 2, str(artifacts / "optimizer_model.onnx"), "no optimizer model", "Copy the one"
    )


@pytest.mark.parametrize("name", ARTIFACTS)
@pytest.mark.parametrize("damage", ["empty", "truncated", "random", "text"])
def test_damaged_file(attempt: Callable[..., Said], tmp_path: Path, name: str, damage: str) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    data = (artifacts / name).read_bytes()
    noise = random.Random(name + damage)
    bad = {
        "empty": b"",
        "truncated": data[: len(data) * 2 // 3],
        "random": noise.randbytes(len(data)),
        "text": b"404: Not Found\n",
    }[damage]
    (artifacts / name).write_bytes(bad)
    refused(attempt(artifacts), 2, name)


def test_checkpoint_of_another_model(attempt: Callable[..., Said], tmp_path: Path) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    (artifacts / "checkpoint").write_bytes((FREE / "checkpoint").read_bytes())
    refused(attempt(artifacts), 2, "checkpoint", "'fc")


def changed(artifacts: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    path = artifacts / "training_model.onnx"
    model = onnx.load(str(path))
    change(model)
    onnx.save(model, str(path))
    return artifacts


def test_unknown_operator(attempt: Callable[..., Said], tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.insert(0, helper.make_node("Puzzle", ["input"], ["h"], name="hard"))
        model.graph.node.insert(0, helper.make_node("Riddle", ["input"], ["r"], name="riddle"))

    said = attempt(changed(copy_of(SMALL, tmp_path / "a"), change))
    refused(said, 3, "training_model.onnx: node 'hard' (Puzzle, opset 17)", "node 'riddle' (Riddle")


def test_unsupported_type(attempt: Callable[..., Said], tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        narrow = helper.make_node("Cast", ["input"], ["narrow"], name="narrow", to=TensorProto.COMPLEX64)
        wide = helper.make_node("Cast", ["narrow"], ["wide"], name="wide", to=TensorProto.FLOAT)
        first = next(i for i, n in enumerate(model.graph.node) if "input" in n.input)
        model.graph.node[first].input[0] = "wide"
        for node in (wide, narrow):
            model.graph.node.insert(0, node)

    said = attempt(changed(copy_of(SMALL, tmp_path / "a"), change))
    refused(said, 3, "training_model.onnx: node 'narrow' (Cast", "element type 14", "has float, ")


@pytest.mark.parametrize(
    "options,code,words",
    [
        (("--target", "vax-vms"), 2, ("vax-vms", "x86_64-linux-gnu")),
        (("--target", "x86_64-linux-gnu:$(x)"), 2, ("no CPU name",)),
        (("--dim", "batch=eight"), 2, ("--dim batch=eight",)),
        (("--dim", "width=8"), 2, ("--dim width=8", "no such free dimension", "batch")),
        (("--max-dim", "batch=0"), 2, ("--max-dim batch=0",)),
        (("--max-dim", "height=4"), 2, ("--max-dim height=4", "batch")),
        (("--dim", "batch=2", "--max-dim", "batch=4"), 2, ("--max-dim batch=4", "no free dimensions")),
        (("--cxx", "no-such-compiler++"), 4, ("no-such-compiler++", "leave --cxx away")),
        (("--cmake-toolchain", "nowhere.cmake"), 2, ("nowhere.cmake",)),
        (("--cxx", "g++", "--cmake-toolchain", "x.cmake"), 2, ("both",)),
        (("--reference", "nowhere.npz"), 2, ("nowhere.npz",)),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else v,
)
def test_bad_options(
    attempt: Callable[..., Said], options: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    refused(attempt(FREE, *options), code, *words)


def test_a_compiler_that_is_none(attempt: Callable[..., Said], tmp_path: Path) -> None:
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    refused(attempt(SMALL, "--cxx", script), 4, "no compiler")


def test_the_default_compiler_is_missing(
    attempt: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    from minbuild.toolchain import zig

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *r: None if n == "ziglang" else real(n, *r))
    zig.find_zig.cache_clear()
    try:
        refused(attempt(SMALL), 4, "ziglang", "pip install", "--cxx")
    finally:
        zig.find_zig.cache_clear()


def test_operators_that_do_not_load(attempt: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "mine.py").write_text("import nothing_of_that_name\n")
    refused(attempt(SMALL, "--ops-dir", tmp_path / "ops"), 2, "mine.py", "nothing_of_that_name")


# ---------------------------------------------------------------------------- the destination


def test_a_folder_that_is_not_ours(minbuild: Command, tmp_path: Path) -> None:
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    refused(minbuild("reduce", SMALL, "-o", out), 2, "precious", "no minbuild package", "Remove it yourself")
    (out / "manifest.json").write_text('{"tool": "another"}')
    refused(minbuild("reduce", SMALL, "-o", out), 2, "no minbuild package")
    refused(minbuild("reduce", SMALL, "-o", out / "thesis.txt"), 2, "is a file")
    refused(minbuild("reduce", SMALL, "-o", out / "thesis.txt" / "dist"), 2, "is a file")
    assert tree(out) == {"thesis.txt": b"years of work", "manifest.json": b'{"tool": "another"}'}


def test_never_over_the_artifacts(minbuild: Command, tmp_path: Path) -> None:
    artifacts = copy_of(SMALL, tmp_path / "a")
    before = tree(artifacts)
    refused(minbuild("reduce", artifacts, "-o", artifacts), 2, "the artifacts are in there")
    refused(minbuild("reduce", artifacts, "-o", tmp_path), 2, "the artifacts are in there")
    assert tree(artifacts) == before


def test_no_permission(minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:  # nothing is closed to root
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    refused(minbuild("reduce", SMALL, "-o", closed / "dist"), 2, "no permission", "closed")
    assert list(closed.iterdir()) == []


def test_a_place_that_takes_no_folders(minbuild: Command) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc")
    refused(minbuild("reduce", SMALL, "-o", "/proc/dist"), 2, "/proc/dist", "another folder")


def test_a_full_disk(minbuild: Command, tmp_path: Path) -> None:
    """On a file system of its own where that can be had; the simulated ones are in test_reduce.py."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("cannot mount here")
    except FileNotFoundError:
        pytest.skip("cannot mount here")
    try:
        said = minbuild("reduce", SMALL, "-o", small / "dist")
        refused(said, 2, "No space left on device", "Free some space")
        assert list(small.iterdir()) == []
        refused(minbuild("reduce", SMALL, "-o", small), 2, "mounted", "a folder inside")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the work."""
    import os
    import signal
    import time

    if os.name != "posix":
        pytest.skip("needs signals")
    root = str(ROOT)
    environment = {**os.environ, "PYTHONPATH": root, "MINBUILD_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "minbuild.cli.main", "reduce", str(SMALL), "-o", str(tmp_path / "dist")]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stderr is not None
    seen = ""
    while "Building" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().endswith("Stopped. Nothing was written.") and "Traceback" not in err and out == ""
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == []
