"""Convolutions with few channels per group: rounding, every width of vectors, and which layers take the kernel."""

from __future__ import annotations

import conv_layers
import numpy as np
import pytest
import trainers
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops import registry
from minbuild.ops.convolution import grouped_conv
from minbuild.training.library import Library

KERNEL = "grouped_conv_packed"
PARTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
ONE, TWO, BY_TWO = (1,) * 4, (2,) * 4, (2, 2)
LAYERS = {
    "four of 32": ConvLayer((1, 128, 28, 28), (128, 4, 3, 3), pads=ONE, group=32),
    "images side by side": ConvLayer((3, 64, 7, 7), (64, 32, 3, 3), pads=ONE, group=2),
    "a last pass of fewer images": ConvLayer((11, 64, 7, 5), (48, 16, 3, 3), pads=ONE, group=4),
    "rows of four vectors": ConvLayer((15, 64, 7, 7), (48, 16, 3, 3), pads=ONE, group=4),
    "by two": ConvLayer((1, 64, 28, 28), (96, 8, 3, 3), strides=BY_TWO, pads=ONE, group=8),
    "odd sizes by two": ConvLayer((5, 40, 15, 13), (56, 5, 3, 3), strides=BY_TWO, pads=ONE, group=8),
    "by two, more pads": ConvLayer(
        (2, 66, 21, 20), (66, 11, 5, 4), strides=BY_TWO, pads=(3, 2, 2, 1), group=6
    ),
    "by two, unread ends": ConvLayer((1, 60, 31, 32), (60, 10, 2, 1), strides=BY_TWO, group=6),
    "gaps": ConvLayer((2, 36, 20, 19), (48, 6, 3, 3), pads=TWO, dilations=(2, 2), group=6),
    "gaps by two": ConvLayer(
        (2, 36, 33, 32), (36, 6, 3, 3), strides=BY_TWO, pads=(2, 1, 1, 2), dilations=(2, 3), group=6
    ),
    "no pads": ConvLayer((2, 30, 21, 17), (39, 10, 3, 2), group=3),
    "pads that differ": ConvLayer((1, 28, 25, 26), (21, 4, 3, 3), pads=(0, 2, 2, 1), group=7),
    "pads behind alone": ConvLayer((3, 28, 23, 13), (21, 4, 3, 5), pads=(0, 0, 2, 3), group=7),
    "many filters a channel": ConvLayer((2, 40, 24, 24), (240, 1, 3, 3), pads=ONE, group=40),
    "one of many channels": ConvLayer((2, 120, 24, 24), (15, 8, 3, 3), pads=ONE, group=15),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    """Of every layer, also where it is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_conv, "_LEAST_WORK", 0)
        return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(
    plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Library]:
    return conv_layers.libraries_by_width(plans.values(), tmp_path_factory.mktemp("grouped"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, str], Plan], Library]:
    """The same by the kernels of all convolutions."""
    return conv_layers.by_other_kernels("takes_grouped", LAYERS, PARTS, tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_results_round_as_those_of_other_kernels(
    libraries: dict[str, Library],
    others: tuple[dict[tuple[str, str], Plan], Library],
    plans: dict[tuple[str, str], Plan],
    name: str,
    part: str,
) -> None:
    """By every width of vectors."""
    plan, other = plans[name, part], others[0][name, part]
    assert KERNEL in {k.function for k in plan.kernels} and KERNEL not in {k.function for k in other.kernels}
    conv_layers.assert_rounds_alike(libraries.values(), plan, others[1], other, LAYERS[name], part)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("part", [FORWARD, INPUT_GRADIENT])
def test_outputs_depend_on_what_their_window_sees_alone(
    libraries: dict[str, Library],
    plans: dict[tuple[str, str], Plan],
    part: str,
    number: float,
    name: str,
) -> None:
    conv_layers.assert_windows_see_alone(libraries.values(), plans[name, part], LAYERS[name], part, number)


@pytest.mark.parametrize(
    ("layer", "takes"),
    [
        (ConvLayer((1, 128, 28, 28), (128, 4, 3, 3), pads=ONE, group=32), True),
        (ConvLayer((1, 128, 14, 14), (128, 64, 3, 3), pads=ONE, group=2), True),
        (ConvLayer((1, 130, 14, 14), (130, 65, 3, 3), pads=ONE, group=2), False),  # many channels
        (ConvLayer((1, 128, 28, 28), (128, 4, 1, 1), group=32), False),
        (ConvLayer((1, 64, 28, 28), (64, 1, 3, 3), pads=ONE, group=64), False),  # a kernel of its own
        (ConvLayer((1, 8, 14, 14), (8, 4, 3, 3), pads=ONE, group=2), False),  # small
        (ConvLayer((1, 128, 28, 28), (128, 4, 3, 3), strides=(1, 2), pads=ONE, group=32), False),
        (ConvLayer((1, 128, 28, 28), (128, 4, 3, 3), strides=(3, 3), pads=ONE, group=32), False),
        (
            ConvLayer((1, 128, 28, 28), (128, 4, 2, 2), pads=(2, 0, 0, 0), group=32),
            False,
        ),  # pads as the window
        (ConvLayer((1, 128, 12, 12, 12), (128, 4, 3, 3, 3), pads=(1,) * 6, group=32), False),
        (ConvLayer((1, 128, 512), (128, 4, 3), pads=(1, 1), group=32), False),
    ],
)
def test_layers_that_take_it(layer: ConvLayer, takes: bool) -> None:
    for part in PARTS:
        assert (KERNEL in {k.function for k in layer.plan(part).kernels}) is takes


@pytest.mark.parametrize("held", [{"conv"}, {"conv", KERNEL}])
def test_plans_do_without_its_strides(held: set[str]) -> None:
    op, case = LAYERS["by two"].case(FORWARD)
    plan = trainers.plan_of(
        trainers.one_node(op, case).artifacts, registry(), KernelChoice(held=frozenset(held))
    )
    assert {k.function for k in plan.kernels} == {"conv"}
