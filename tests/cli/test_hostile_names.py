"""Text from models is data: names that would control a terminal, a page or a shell, through every command and form."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Command
from commands import command_fixture as command_fixture
from onnx import TensorProto, helper, numpy_helper
from places import ROOT

from minbuild import escape

# Colours and clears a terminal, ends the line, turns text around, and is markup of HTML, Markdown, C and shells.
EVIL = "\x1b[31m\x9b2J\u202e\n# owned\r| <script>alert('x')</script> `a` [b](c) **d** $(touch owned) \"q\" */ ??/ %s\\"
BATCH = f"batch{EVIL}"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def named(text: str) -> str:
    return text + EVIL


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forward model all of whose names are hostile."""
    initial = [
        numpy_helper.from_array(np.full((4, 3), 0.1, np.float32), named("w")),
        numpy_helper.from_array(np.zeros(3, np.float32), named("b")),
    ]
    nodes = [
        helper.make_node("Gemm", [named("x"), named("w"), named("b")], [named("h")], name=named("gemm")),
        helper.make_node("Tanh", [named("h")], [named("y")], name=named("tanh")),
    ]
    ports = [
        [helper.make_tensor_value_info(named(name), TensorProto.FLOAT, [BATCH, size])]
        for name, size in (("x", 4), ("y", 3))
    ]
    graph = helper.make_graph(nodes, named("g"), *ports, initial)
    path = tmp_path_factory.mktemp("hostile") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module", name="made")
def made_fixture(model: Path) -> tuple[Path, Path]:
    """Its artifacts, and a package of them."""
    from minbuild.cli.main import app

    artifacts, out = model.parent / "artifacts", model.parent / "dist"
    for command in (
        ["artifacts", model, "--out", artifacts, "--loss", "mse"],
        ["reduce", artifacts, "--out", out, "--analysis"],
    ):
        with pytest.raises(SystemExit) as left:
            app([str(part) for part in command])
        assert not left.value.code
    return artifacts, out


def check_terminal(text: str) -> None:
    """No control character, and no line that a name began."""
    assert not CONTROL.search(text), CONTROL.findall(text)
    assert not [line for line in text.splitlines() if line.startswith("# owned")], text[:3000]


def test_every_command_prints_plain_text(minbuild: Command, made: tuple[Path, Path], model: Path) -> None:
    artifacts = made[0]
    out = Path(shutil.copytree(made[1], model.parent / "copy"))
    report = out / "report" / "report.json"
    changed = json.loads(report.read_text())
    changed["targets"][0]["rows"][0]["bytes"] += 1
    changed["model"]["sizes"] = {BATCH: 8}
    (out.parent / "changed.json").write_text(json.dumps(changed))
    for code, *command in (
        (
            0,
            "artifacts",
            model,
            "--out",
            out.parent / "again",
            "--loss",
            "mse",
            "--estimate",
            "--check-gradients",
        ),
        (0, "scan", artifacts),
        (0, "scan", artifacts, "--json"),
        (0, "reduce", artifacts, "--out", out),
        (0, "reduce", artifacts, "--out", out, "--report", "full", "--verbose"),
        (0, "reduce", artifacts, "--out", out, "--json"),
        (0, "check", artifacts, "--package", out),
        (0, "diff", report, out.parent / "changed.json"),
        (0, "diff", report, out.parent / "changed.json", "--markdown"),
        (0, "why", "Gemm", "--package", out),
        (0, "why", "Tanh", "--package", out),
        (0, "export", artifacts, "--out", out.parent / "exported.onnx"),
        (0, "ort-config", artifacts),
        (2, "reduce", artifacts, "--out", out, "--dim", "x=1"),
        (2, "check", artifacts, "--package", out, "--max-dim", "x=1"),
        (2, "reduce", artifacts, "--out", out, "--with", "export", "--export-output", "x"),
        (2, "reduce", artifacts, "--out", out, "--exclude-op", "Gemm"),
    ):
        said = minbuild(*command)
        assert said.code == code, said.err
        check_terminal(said.out)
        check_terminal(said.err)


class Elements(HTMLParser):
    """Every element of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))


def test_no_form_of_the_report_has_markup_of_a_name(made: tuple[Path, Path]) -> None:
    folder = made[1] / "report"
    page, document, data = ((folder / f"report.{kind}").read_text() for kind in ("html", "md", "json"))
    for text in (page, document, data):
        check_terminal(text)
        assert "owned" in text  # the names are shown
    (kind, figures), (plain, program) = Elements(page).scripts  # data, and what shows it
    assert kind == {"id": "report-data", "type": "application/json"} and plain == {}
    assert "<" not in figures and "owned" in figures and json.loads(figures)
    allowed = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page
    assert program.strip() == (ROOT / "templates/report/report.js").read_text().strip()
    prose = re.sub(r"<!--.*?-->", "", document)
    assert set(re.findall(r"</?([a-z]+)", prose)) <= {"details", "summary"}
    assert "](c)" not in prose.replace("\\]", "") and "**d**" not in prose.replace("\\*", "")
    assert json.loads(data)["model"]["sizes"] == {BATCH: 32}  # nothing is lost


def test_the_readme_and_the_program_hold_names_as_text(made: tuple[Path, Path]) -> None:
    _, out = made
    readme, program = (out / "README.md").read_text(), (out / "sample/train.c").read_text()
    check_terminal(readme)
    check_terminal(program)
    for comment in re.findall(r"/\*.*?\*/", program, re.DOTALL):
        assert "touch owned" not in comment or comment.count("*/") == 1
    rows = [line for line in readme.splitlines() if "touch owned" in line and line.startswith("|")]
    assert rows and all(len(re.split(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "touch owned" not in re.sub(r"(`+) .*? \1", "", readme)
    command = (
        "gcc",
        "-std=c99",
        "-pedantic-errors",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-I",
        out / "include",
    )
    done = subprocess.run((*command, out / "sample/train.c"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_suggested_commands_are_quoted(made: tuple[Path, Path]) -> None:
    report = json.loads((made[1] / "report/report.json").read_text())
    hows = [each["how"] for each in report["targets"][0]["suggestions"] if "batch" in each["how"]]
    assert hows
    for how in hows:
        option, value = shlex.split(how)
        assert option in ("--dim", "--max-dim") and value.rpartition("=")[0] == BATCH
        echoed = subprocess.run(
            ("sh", "-c", f"printf %s {how.partition(' ')[2]}"), capture_output=True, cwd=made[1].parent
        )
        assert echoed.stdout.decode() == value and not (made[1].parent / "owned").exists()


@pytest.mark.parametrize("text", ["plain", "a_b*c", EVIL, "\ud800", "``", "a|b", "???/", "/*/"])
def test_escapes(text: str) -> None:
    assert escape.printable(text).isprintable() and escape.printable("häß/1:0") == "häß/1:0"
    assert json.loads(escape.for_json(json.dumps(text, ensure_ascii=False))) == text
    comment = escape.in_comment(text)
    assert "*/" not in comment and "/*" not in comment and "??" not in comment and comment.isprintable()
    assert not re.search(r"(?<!\\)[|*_`\[\]<>]", escape.for_markdown(text))
    fence = re.match("`+", escape.as_code(text))
    assert fence and fence[0] not in escape.as_code(text)[len(fence[0]) : -len(fence[0])]
