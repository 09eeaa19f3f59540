"""The command itself: help, versions, options, streams, and what each kind of failure looks like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from commands import FREE, GOLDEN, SMALL, Command, command_fixture, copy_of  # noqa: F401
from onnx import helper

from minbuild import __version__
from minbuild import pipeline as reduce
from minbuild.cli.progress import parse_sizes
from minbuild.errors import BadInput, OverBudget, ToolchainFailed, VerificationFailed
from minbuild.planning import scan


def test_version(minbuild: Command) -> None:
    assert minbuild("--version").out == f"minbuild {__version__}\n"


def test_help_teaches(minbuild: Command) -> None:
    said = minbuild("--help")
    assert said.code == 0
    assert "minbuild reduce artifacts/ --out dist/" in said.out and "minbuild scan artifacts/" in said.out
    assert "6 verification failed" in " ".join(said.out.split())


@pytest.mark.parametrize(
    "arguments", [("reduce",), ("reduce", SMALL), ("shrink",), ("scan", SMALL, "--no-analysis")]
)
def test_wrong_usage_is_bad_input(minbuild: Command, arguments: tuple[object, ...]) -> None:
    said = minbuild(*arguments)
    assert said.code == 2 and said.out == "" and said.err


# ---------------------------------------------------------------------------- scan


def test_scan_counts_every_node(minbuild: Command) -> None:
    said = minbuild("scan", FREE, "--json")
    found = json.loads(said.out)
    assert said.code == 0 and found["findings"] == [] and found["free_dimensions"] == ["batch"]
    models = [onnx.load(str(FREE / f"{n}_model.onnx")) for n in ("training", "eval", "optimizer")]
    assert sum(row["nodes"] for row in found["operators"]) == sum(len(m.graph.node) for m in models)
    rows = {row["title"]: row for row in found["operators"]}
    gemm = rows["Gemm"]
    assert gemm["version"] == 17 and gemm["kernels"] == gemm["nodes"] and gemm["types"] == ["float"]
    assert gemm["features"] == ["gemm.bias"]
    assert gemm["files"] == ["eval_model.onnx", "training_model.onnx"]
    assert gemm["example"] in {n.name for m in models for n in m.graph.node}


def test_scan_knows_what_is_folded(minbuild: Command) -> None:
    rows = {r["title"]: r for r in json.loads(minbuild("scan", GOLDEN / "conv", "--json").out)["operators"]}
    assert rows["Shape"]["kernels"] == rows["Flatten"]["kernels"] == 0 < rows["Conv"]["kernels"]


def test_scan_prints_a_table(minbuild: Command) -> None:
    said = minbuild("scan", FREE)
    line = next(line for line in said.out.splitlines() if line.startswith("Gemm"))
    assert "kernels" in line and "gemm.bias" in line
    assert "free dimensions: batch" in said.out


def test_scan_tells_of_repairs(minbuild: Command) -> None:
    assert "dropped the unused statistics outputs" in minbuild("scan", GOLDEN / "residual").out


def unsupported(folder: Path) -> Path:
    """Artifacts with two nodes nobody knows, in two files."""
    for name in ("training_model.onnx", "eval_model.onnx"):
        model = onnx.load(str(folder / name))
        strange = helper.make_node(
            "Enigma", ["input"], [f"strange {name}"], name=f"strange/{name}", domain="x.y"
        )
        model.graph.node.insert(0, strange)
        model.opset_import.append(helper.make_opsetid("x.y", 3))
        onnx.save(model, str(folder / name))
    return folder


def test_scan_reports_everything_unsupported_at_once(minbuild: Command, tmp_path: Path) -> None:
    artifacts = unsupported(copy_of(SMALL, tmp_path / "a"))
    said = minbuild("scan", artifacts)
    assert said.code == 3
    for name in ("training_model.onnx", "eval_model.onnx"):
        assert f"{name}: node 'strange/{name}' (x.y:Enigma, opset 3)" in said.err
    assert "not supported" in said.out and "Gemm" in said.out
    found = json.loads(minbuild("scan", artifacts, "--json").out)
    assert len(found["findings"]) == 2
    assert [r["supported"] for r in found["operators"] if r["title"] == "x.y:Enigma"] == [False]


def test_scan_knows_operators_the_user_brings(minbuild: Command, tmp_path: Path) -> None:
    artifacts = unsupported(copy_of(SMALL, tmp_path / "a"))
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "enigma.py").write_text(
        "from minbuild.ops.core.definition import Op, same_as\n"
        "enigma = Op('Enigma', domain='x.y', infer=same_as(0), is_view=True)\n"
        "OPS = (enigma,)\n"
    )
    assert minbuild("scan", artifacts, "--ops-dir", tmp_path / "ops").code == 0


# ---------------------------------------------------------------------------- failures, whoever fails


FAILURES = [
    (BadInput("a: b. Do c."), 2, "error: a: b. Do c."),
    (ToolchainFailed("d"), 4, "error: d"),
    (OverBudget("e"), 5, "error: e"),
    (VerificationFailed("f"), 6, "error: f"),
    (KeyboardInterrupt(), 130, "Stopped. Nothing was written."),
    (ZeroDivisionError("by nothing"), 1, "internal error: ZeroDivisionError: by nothing."),
]


@pytest.mark.parametrize("error,code,text", FAILURES, ids=lambda v: type(v).__name__)
def test_a_failure_is_a_text_and_a_code(
    minbuild: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    for module, name, arguments in ((reduce, "reduce", ("-o", "x")), (scan, "scan", ())):
        monkeypatch.setattr(module, name, fail)
        said = minbuild(name, SMALL, *arguments)
        assert said.code == code and text in said.err and said.out == ""
        assert "Traceback" not in said.err
        if code != 130:
            assert "Traceback" in minbuild(name, SMALL, *arguments, "--verbose").err


def test_sizes() -> None:
    assert parse_sizes("--dim", ["batch=8", "a=b=3"]) == {"batch": 8, "a=b": 3}
    for text in ("batch", "batch=", "=8", "batch=8x", "batch=-1", "batch=0", "batch=2147483648", "batch=٣"):
        with pytest.raises(BadInput, match="--dim"):
            parse_sizes("--dim", [text])
    with pytest.raises(BadInput, match="two sizes"):
        parse_sizes("--max-dim", ["batch=8", "batch=9"])


def test_ctrl_c_while_modules_load_ends_quietly():
    """The commands' import is what takes the time before anything can be caught by them."""
    script = (
        "import sys, types, minbuild.__main__ as way_in\n"
        "class Slow(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['minbuild.cli.main'] = Slow('minbuild.cli.main')\n"
        "way_in.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "minbuild", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"minbuild {__version__}\n"
