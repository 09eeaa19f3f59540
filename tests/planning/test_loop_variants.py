"""The variants of inner loops: all, unless every size is known and small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import GOLDEN
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`
from step_graphs import step

from minbuild.options.build_options import BuildOptions, in_profile
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.loop_variants import with_loop_variants


def variants(folder: str, build_options: BuildOptions = BuildOptions(), size: int = 0) -> str:  # noqa: B008
    model = compile_model(GOLDEN / folder, {"batch": size} if size else {}, {})
    chosen = with_loop_variants([model], build_options).loop_variants
    assert contents_of([model], build_options=build_options).one_variant == (chosen == "one")
    return chosen


def test_libraries_of_few_known_elements_have_one_variant() -> None:
    assert variants("dense_fixed") == "one"
    assert variants("dense") == "all"  # its batch is free
    assert variants("dense", size=2) == "all"  # its 296 parameters have one buffer


def test_libraries_for_other_models_have_all() -> None:
    assert variants("dense_fixed", BuildOptions(kernel_features="all")) == "all"
    assert variants("dense_fixed", BuildOptions(shape_ops="all")) == "all"
    model = compile_model(GOLDEN / "dense_fixed", {}, {})
    assert with_loop_variants([model], BuildOptions(), others=True).loop_variants == "all"
    other = compile_model(GOLDEN / "dense", {}, {})
    assert with_loop_variants([model, other], BuildOptions()).loop_variants == "all"


def test_given_values_stay() -> None:
    for value in ("all", "one"):
        assert variants("dense_fixed", replace(BuildOptions(), loop_variants=value)) == value
    assert variants("dense_fixed", in_profile("fastest")) == "all"
    assert variants("dense", in_profile("smallest")) == "one"


@pytest.mark.parametrize("net", ["tanh", "relu"])
def test_adam_written_out_in_a_step_graph_takes_14_kb(net: str, tmp_path: Path, minbuild: Command) -> None:
    (tmp_path / "step.onnx").write_bytes(step(net, "adam").model().SerializeToString())
    out = tmp_path / "out"
    done = minbuild("reduce", tmp_path / "step.onnx", "--out", out, "--no-analysis")
    assert done.code == 0 and "PROVEN" in done.out, done.err
    (library,) = out.glob("lib/*/*.so")
    assert library.stat().st_size <= 14 << 10
