"""Convolutions over wide images, whose panels tiles collect, and by windows that move by two, whose lines are moved by
pairs: the same bits, and which layers ask for it."""

from __future__ import annotations

import conv_layers
import pytest
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.training.library import Library

pytestmark = pytest.mark.usefixtures("packed_convolutions")

WIDE, PAIRS, PADDED = "conv.wide_images", "conv.pairs", "conv.padded"
PARTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
ONE = (1, 1, 1, 1)
LAYERS = {
    "56x56": ConvLayer((1, 16, 56, 56), (64, 16, 3, 3), pads=ONE),
    "odd lines": ConvLayer((2, 20, 37, 33), (43, 20, 3, 3), pads=(0, 2, 1, 0)),
    "as wide as vectors": ConvLayer((1, 64, 18, 18), (72, 64, 3, 3)),
    "one more": ConvLayer((1, 64, 18, 19), (72, 64, 3, 3)),
    "passes of two images and of one": ConvLayer((3, 64, 6, 42), (64, 64, 3, 3)),
    "several blocks of rows": ConvLayer((1, 36, 30, 30), (300, 36, 3, 3), pads=ONE),
    "gaps": ConvLayer((1, 32, 40, 40), (32, 32, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "groups": ConvLayer((2, 144, 40, 40), (144, 72, 3, 3), pads=ONE, group=2),
    "a line": ConvLayer((1, 64, 1200), (64, 64, 5), pads=(2, 2)),
    "a volume": ConvLayer((1, 16, 6, 20, 20), (32, 16, 3, 3, 3), pads=(1,) * 6),
    "7x7 by two": ConvLayer((1, 3, 112, 112), (64, 3, 7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
    "3x3 by two": ConvLayer((1, 40, 65, 57), (50, 40, 3, 3), strides=(2, 2), pads=ONE),
    "by three and two": ConvLayer((2, 40, 70, 63), (50, 40, 3, 4), strides=(3, 2), pads=(2, 0, 0, 3)),
    "by one and two, small": ConvLayer((1, 128, 14, 13), (90, 128, 3, 3), strides=(1, 2), pads=(1, 2, 1, 2)),
    "by two, the last lines unread": ConvLayer((1, 40, 64, 64), (50, 40, 3, 3), strides=(2, 2)),
    "by two with gaps": ConvLayer((1, 40, 64, 64), (50, 40, 3, 3), strides=(2, 2), dilations=(2, 3)),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory) -> list[Library]:
    return conv_layers.libraries(plans.values(), {WIDE, PAIRS}, tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_wide_images_and_pairs_change_no_bit(
    libraries: list[Library], plans: dict[tuple[str, str], Plan], name: str, part: str
) -> None:
    plan = plans[name, part]
    strides = LAYERS[name].strides
    assert (PAIRS in plan.features) == bool(strides)
    outputs = part == FORWARD or part == INPUT_GRADIENT and not strides
    assert (WIDE in plan.features) == (outputs and "small" not in name and PADDED not in plan.features)
    conv_layers.assert_same_bits(libraries, LAYERS[name], part, plan, {WIDE, PAIRS})


@pytest.mark.parametrize(
    ("layer", "asks"),
    [
        (ConvLayer((1, 128, 17, 17), (256, 128, 3, 3)), set()),
        (ConvLayer((1, 128, 18, 18), (256, 128, 3, 3)), {WIDE}),
        (ConvLayer((1, 128, 18, 18), (256, 128, 3, 3), pads=ONE), set()),  # leaves padding out
        (ConvLayer((1, 128, 40, 40), (256, 128, 1, 1)), set()),
        (ConvLayer((1, 128, 40, 40), (256, 128, 1, 1), strides=(2, 2)), {WIDE}),
        (ConvLayer((1, 4, 12, 12), (8, 4, 3, 3), strides=(2, 2)), set()),  # of no real size
    ],
)
def test_layers_that_ask(layer: ConvLayer, asks: set[str]) -> None:
    assert {WIDE, PAIRS} & set(layer.plan(FORWARD).features) == asks
