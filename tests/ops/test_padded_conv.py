"""Convolutions over small images, whose products leave padding out: the same bits, and which layers ask for it."""

from __future__ import annotations

from pathlib import Path

import conv_layers
import pytest
from conv_layers import FORWARD, INPUT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.training.library import Library

pytestmark = pytest.mark.usefixtures("packed_convolutions")

FEATURE = "conv.padded"
PARTS = FORWARD, INPUT_GRADIENT
ONE = (1, 1, 1, 1)
LAYERS = {
    "7x7 in eight images": ConvLayer((8, 128, 7, 7), (128, 128, 3, 3), pads=ONE),
    "7x7 in one": ConvLayer((1, 300, 7, 7), (256, 300, 3, 3), pads=ONE),
    "a pass of eight and one of three": ConvLayer((11, 67, 7, 7), (250, 67, 3, 3), pads=ONE),
    "14x14": ConvLayer((1, 68, 14, 14), (132, 68, 3, 3), pads=ONE),
    "few filters": ConvLayer((1, 250, 14, 14), (20, 250, 3, 3), pads=ONE),
    "two steps": ConvLayer((2, 64, 28, 28), (70, 64, 3, 3), strides=(2, 2), pads=ONE),
    "pads that differ": ConvLayer((3, 64, 12, 17), (70, 64, 3, 3), pads=(0, 2, 1, 0)),
    "5x5 with gaps": ConvLayer((1, 40, 20, 20), (64, 40, 5, 5), pads=(4, 4, 4, 4), dilations=(2, 2)),
    "windows larger than images": ConvLayer((9, 190, 3, 3), (290, 190, 5, 5), pads=(2, 2, 2, 2)),
    "groups": ConvLayer((2, 136, 14, 14), (136, 68, 3, 3), pads=ONE, group=2),
    "a row": ConvLayer((1, 256, 1, 80), (256, 256, 1, 3), pads=(0, 1, 0, 1)),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory) -> list[Library]:
    return conv_layers.libraries(plans.values(), {FEATURE}, tmp_path_factory.mktemp("padded"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_leaving_padding_out_changes_no_bit(
    libraries: list[Library], plans: dict[tuple[str, str], Plan], name: str, part: str
) -> None:
    plan = plans[name, part]
    exchanged = not LAYERS[name].strides
    assert (FEATURE in plan.features) == (part == FORWARD or exchanged)
    conv_layers.assert_same_bits(libraries, LAYERS[name], part, plan, {FEATURE})


@pytest.mark.parametrize(
    ("size", "taps", "pad", "asks"),
    [
        (22, 3, 1, True),
        (23, 3, 1, False),
        (14, 3, 0, False),
        (14, 1, 0, False),
        (14, 5, 1, True),
        (14, 7, 3, False),
    ],
)
def test_layers_that_ask(size: int, taps: int, pad: int, asks: bool) -> None:
    """Those with padding around few outputs, and no more taps than a mask has bits."""
    layer = ConvLayer((1, 128, size, size), (256, 128, taps, taps), pads=(pad,) * 4)
    assert (FEATURE in layer.plan(FORWARD).features) == asks


def test_lines_keep_their_padding_in_a_library_for_images(tmp_path: Path) -> None:
    line, image = ConvLayer((8, 250, 55), (98, 250, 4), pads=(3, 3), dilations=(2,)), LAYERS["14x14"]
    plans = {part: line.plan(part) for part in PARTS}
    assert not any(FEATURE in plan.features for plan in plans.values())
    made = conv_layers.libraries([*plans.values(), image.plan(FORWARD)], {FEATURE}, tmp_path)
    for part, plan in plans.items():
        conv_layers.assert_same_bits(made, line, part, plan, {FEATURE})
