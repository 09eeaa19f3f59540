"""`minbuild why` and `minbuild explain`."""

from __future__ import annotations

import sys

import pytest
from commands import SMALL, Command, command_fixture  # noqa: F401  the fixture `minbuild`

from minbuild.analysis.error_codes import _CURES, statuses
from minbuild.training.library import TrainerError


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    from minbuild import pipeline as reduce
    from minbuild.cli.main import app

    out = tmp_path_factory.mktemp("why") / "dist"
    with pytest.raises(SystemExit) as left:
        app(["reduce", str(SMALL), "--out", str(out), "--no-analysis", "--loop-variants", "all"])
    assert not left.value.code
    assert reduce
    return out


def test_chain_from_nodes_to_symbol(minbuild: Command, dist):
    said = minbuild("why", "Gemm", "--package", dist)
    assert said.code == 0 and "nodes /Gemm" in said.out and "-> kernels/gemm.cc" in said.out
    said = minbuild("why", "multiply_panel", "--package", dist)
    assert "(Gemm) -> kernels/gemm.cc -> " in said.out and said.out.count("->") >= 3
    assert "every trainer -> " in minbuild("why", "mb_create", "--package", dist).out
    assert minbuild("why", "session", "--package", dist).out.count(" const") == 0
    shared = minbuild("why", "multiply_panel (gemm.h)", "--package", dist)
    assert shared.code == 0 and shared.out in minbuild("why", "multiply_panel", "--package", dist).out


def test_unknown_names_get_a_hint(minbuild: Command, dist):
    said = minbuild("why", "gem", "--package", dist)
    assert said.code == 2 and "Did you mean" in said.err and "gemm" in said.err
    assert "Outside of itself it calls" in minbuild("why", "malloc", "--package", dist).err
    assert minbuild("why", "Gemm", "--package", dist / "nowhere").code == 2


def test_every_status_is_explained(minbuild: Command):
    assert {name for name, _ in statuses().values()} == set(_CURES)
    for code, (name, what) in statuses().items():
        by_number, by_name = (minbuild("explain", text).out for text in (str(code), name))
        assert by_number == by_name and what in by_number and _CURES[name] in by_number
    assert minbuild("explain", "99").code == 2
    assert issubclass(TrainerError, Exception)


def test_machine_code(minbuild: Command, dist):
    """Every byte of a function, one instruction after the other, and where calls lead."""
    pytest.importorskip("capstone")
    said = minbuild("why", "mb_run", "--package", dist, "--asm")
    assert said.code == 0, said.err
    start = next(i for i, line in enumerate(said.out.splitlines()) if " bytes at 0x" in line)
    head, *lines = said.out.splitlines()[start:]
    size, place = int(head.split(" bytes at")[0].split()[-1].replace(",", "")), int(head.split()[-3], 16)
    for line in lines:
        at, data = line.split()[:2]
        assert int(at, 16) == place, "instructions follow one another"
        place += len(bytes.fromhex(data))
        size -= len(bytes.fromhex(data))
    assert size == 0 and any(line.endswith(">") for line in lines)
    data = minbuild("why", "kKernelRows", "--package", dist, "--asm")
    assert data.code or "data of section" in data.out
    assert minbuild("why", "Gemm", "--package", dist, "--asm").code == 2, "an operator is no function"


def test_machine_code_needs_its_package(minbuild: Command, dist, monkeypatch):
    monkeypatch.setitem(sys.modules, "capstone", None)
    said = minbuild("why", "mb_run", "--package", dist, "--asm")
    assert said.code == 2 and "pip install 'capstone>=5'" in said.err
