"""--packing: plans that pack all products that gain at the largest sizes, but not for chips and not beyond a budget."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from authored import FORWARD  # noqa: F401  (puts the golden models on the path)
from forward import FLOAT, Net

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.options.build_options import ALL, AUTO, BuildOptions, in_profile
from minbuild.options.plan_options import PlanOptions
from minbuild.pipeline import plan_options
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.ram_budget import ram_of
from minbuild.toolchain import parse_target


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a perceptron that has few products at one sample, and many at 32."""
    net, folder = Net(8), tmp_path_factory.mktemp("perceptron")
    x = net.add("Relu", [net.linear("input", "fc1", 300, 150)])
    net.linear(x, "fc2", 150, 10, "output")
    model = net.model({"input": (FLOAT, ("batch", 300))}, {"output": (FLOAT, ("batch", 10))})
    onnx.save(model, folder / "model.onnx")
    write_artifacts(
        make_artifacts(folder / "model.onnx", Recipe(loss="cross-entropy", optimizer="adamw")),
        folder / "artifacts",
    )
    return folder / "artifacts"


def _packs(model: CompiledModel) -> bool:
    return any(kernel.function.endswith("_packed") for kernel in model.plan.kernels)


def test_all_that_gain_at_the_largest_sizes_are_packed(artifacts: Path) -> None:
    every = PlanOptions(packs_all=True)
    assert not _packs(compile_model(artifacts, {}, {}))
    assert _packs(compile_model(artifacts, {}, {}, options=every))
    assert not _packs(compile_model(artifacts, {}, {"batch": 1}, options=every))


def test_a_budget_comes_first(artifacts: Path) -> None:
    every = compile_model(artifacts, {}, {}, options=PlanOptions(packs_all=True))
    budget = ram_of(compile_model(artifacts, {}, {}).plan, every.largest)
    assert budget < ram_of(every.plan, every.largest)
    fitted = compile_model(artifacts, {}, {}, options=PlanOptions(packs_all=True, ram=budget))
    assert ram_of(fitted.plan, fitted.largest) <= budget and not _packs(fitted)


@pytest.mark.parametrize(
    ("targets", "packs"),
    [
        (["x86_64-linux-gnu", "wasm32"], True),
        (["cortex-m4f"], False),
        (["x86_64-linux-gnu", "cortex-m4f"], False),
    ],
    ids=str,
)
def test_the_fastest_profile_packs_all_but_for_chips(targets: list[str], packs: bool) -> None:
    found = [parse_target(each) for each in targets]
    assert plan_options(in_profile("fastest"), found).packs_all is packs
    assert not plan_options(BuildOptions(), found).packs_all
    assert (in_profile("fastest").packing, BuildOptions().packing) == (ALL, AUTO)
