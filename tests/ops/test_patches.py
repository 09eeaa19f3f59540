"""Convolutions whose windows move by a multiple of four elements, whose lines are transposed, and gradients of weights
whose last panel is half as wide: the same bits, and which layers ask for it."""

from __future__ import annotations

import conv_layers
import pytest
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.training.library import Library

PATCHES, HALF = "conv.patches", "conv.half_panels"
PARTS = FORWARD, WEIGHT_GRADIENT
BY_FOUR = (4, 4)
LAYERS = {
    "4x4 by 4": ConvLayer((1, 3, 128, 128), (96, 3, 4, 4), strides=BY_FOUR),
    "unread ends": ConvLayer((2, 3, 135, 130), (96, 3, 4, 4), strides=BY_FOUR),
    "pads of a part of a step": ConvLayer(
        (1, 3, 99, 97), (64, 3, 11, 11), strides=BY_FOUR, pads=(2, 2, 2, 2)
    ),
    "pads that differ": ConvLayer((1, 6, 62, 63), (90, 6, 8, 7), strides=(3, 4), pads=(1, 5, 2, 0)),
    "16x16 by 16": ConvLayer((1, 3, 96, 80), (192, 3, 16, 16), strides=(16, 16)),
    "fewer than four windows": ConvLayer((3, 64, 40, 14), (128, 64, 8, 8), strides=BY_FOUR),
    "gaps": ConvLayer((1, 40, 65, 69), (50, 40, 3, 3), strides=BY_FOUR, dilations=(2, 3)),
    "eight lines by four": ConvLayer((1, 16, 84, 80), (64, 16, 3, 4), strides=(1, 4), pads=(1, 0, 1, 0)),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory) -> list[Library]:
    return conv_layers.libraries(plans.values(), {PATCHES, HALF}, tmp_path_factory.mktemp("patches"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_transposed_lines_and_half_panels_change_no_bit(
    libraries: list[Library], plans: dict[tuple[str, str], Plan], name: str, part: str
) -> None:
    plan = plans[name, part]
    assert PATCHES in plan.features
    conv_layers.assert_same_bits(libraries, LAYERS[name], part, plan, {PATCHES, HALF})


@pytest.mark.parametrize(
    ("layer", "part", "asks"),
    [
        (LAYERS["4x4 by 4"], WEIGHT_GRADIENT, {PATCHES, HALF}),  # 48 columns
        (LAYERS["4x4 by 4"], INPUT_GRADIENT, set()),
        (LAYERS["16x16 by 16"], WEIGHT_GRADIENT, {PATCHES}),  # 24 panels
        (ConvLayer((1, 40, 91, 91), (50, 40, 3, 3), strides=BY_FOUR), WEIGHT_GRADIENT, set()),  # three planes
        (ConvLayer((1, 3, 160, 160), (64, 3, 6, 6), strides=(6, 6)), WEIGHT_GRADIENT, {HALF}),  # 108 columns
        (ConvLayer((1, 3, 16, 16), (8, 3, 4, 4), strides=BY_FOUR), FORWARD, set()),  # of no real size
    ],
)
def test_layers_that_ask(layer: ConvLayer, part: str, asks: set[str]) -> None:
    assert {PATCHES, HALF} & set(layer.plan(part).features) == asks
