"""Convolutions of real size, of which a feature of the library changes how they are computed but no bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import trainers

from minbuild.ir import Plan
from minbuild.ops import registry
from minbuild.ops.convolution import conv
from minbuild.ops.core.definition import Op, TestCase
from minbuild.training.library import Library

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"


@dataclass(frozen=True)
class ConvLayer:
    """Shapes of the images and of the filters, and the window; pads and strides of 0 and 1 where there are none."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    @property
    def attributes(self) -> dict[str, object]:
        window = self.w[2:]
        ones = (1,) * len(window)
        return {
            "kernel_shape": window,
            "strides": self.strides or ones,
            "pads": self.pads or (0, 0) * len(window),
            "dilations": self.dilations or ones,
            "group": self.group,
            "auto_pad": "NOTSET",
        }

    def case(self, part: str) -> tuple[Op, TestCase]:
        """With a bias, or of one gradient alone."""
        known, random = registry(), np.random.default_rng(1)
        conv = known.ops[":Conv"]
        x, w, bias = (random.standard_normal(shape) for shape in (self.x, self.w, self.w[:1]))
        if part == FORWARD:
            return conv, TestCase("y", (x, w, bias), self.attributes)
        assert conv.reference is not None
        dy = np.random.default_rng(2).standard_normal(np.shape(conv.reference(self.attributes, x, w)))
        absent = frozenset({1, 2}) if part == INPUT_GRADIENT else frozenset({0, 2})
        case = TestCase("gradient", (dy, x, w), self.attributes, outputs=3, absent=absent)
        return known.ops["com.microsoft:ConvGrad"], case

    def plan(self, part: str) -> Plan:
        return trainers.plan_of(trainers.one_node(*self.case(part)).artifacts, registry())


def without(plan: Plan, features: Iterable[str]) -> Plan:
    return replace(plan, features=tuple(f for f in plan.features if f not in features))


def libraries(plans: Iterable[Plan], features: Iterable[str], folder: Path) -> list[Library]:
    """For all plans: with the features by AVX2 and by AVX-512 as well, and without them likewise."""
    given, made = list(plans), []
    for number, some in enumerate((given, [without(plan, features) for plan in given])):
        contents = trainers.contents_of(some)
        for avx512 in (False, True):
            own = folder / f"{number}-{avx512}"
            own.mkdir()
            made.append(trainers.library_of(replace(contents, avx512=avx512), registry(), own))
    return made


def libraries_by_width(plans: Iterable[Plan], folder: Path) -> dict[str, Library]:
    """By AVX2, by AVX-512 where the processor has it, and by the vectors that every processor has."""
    contents, made = trainers.contents_of(plans), {}
    for name, given in (("wide", {}), ("AVX-512", {"avx512": True}), ("one variant", {"one_variant": True})):
        (folder / name).mkdir()
        made[name] = trainers.library_of(replace(contents, **given), registry(), folder / name)
    return made


Planned = dict[tuple[str, str], Plan]  # by the name of a layer and the part of it that is computed


def by_other_kernels(
    choice: str, layers: Mapping[str, ConvLayer], parts: Iterable[str], folder: Path
) -> tuple[Planned, Library]:
    """Plans of the layers and their library where `choice` of conv.py never takes a kernel of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, choice, lambda *_, **__: False)
        plans = {(name, part): layer.plan(part) for part in parts for name, layer in layers.items()}
    return plans, trainers.library_of(trainers.contents_of(plans.values()), registry(), folder)


def assert_rounds_alike(
    made: Iterable[Library], plan: Plan, other: Library, other_plan: Plan, layer: ConvLayer, part: str
) -> None:
    """By each of `made`, the largest error of a step and the mean one, beside those of another kernel."""
    op, case = layer.case(part)
    one, ((key, exact),) = trainers.one_node(op, case), trainers.expected(op, case).items()
    theirs = trainers.run(other, other_plan, one)[key] - exact
    for library in made:
        ours = trainers.run(library, plan, one)[key] - exact
        assert np.abs(ours).max() < 4 * np.abs(theirs).max() + 1e-7 * np.abs(exact).max()
        assert np.sqrt(np.mean(ours**2)) < 3 * np.sqrt(np.mean(theirs**2)) + 1e-9


def assert_windows_see_alone(
    made: Iterable[Library], plan: Plan, layer: ConvLayer, part: str, number: float
) -> None:
    """Elements of images that are `number` reach the results whose windows see them, and no others, which are zeros,
    also where zeros are padding of two rows or images."""
    op, case = layer.case(part)
    images = np.zeros_like(case.inputs[0])
    images[0, 3, -1, -1] = images[-1, 2, 0, -1] = images[0, 1, images.shape[2] // 2, 0] = number
    last = np.zeros(len(case.inputs[1])) if part == FORWARD else case.inputs[2]
    case = replace(case, inputs=(images, case.inputs[1], last))
    one, ((key, exact),) = trainers.one_node(op, case), trainers.expected(op, case).items()
    for library in made:
        found = trainers.run(library, plan, one)[key]
        assert np.array_equal(found != 0, exact != 0)
        assert np.array_equal(np.isfinite(found), np.isfinite(exact))


def assert_same_bits(
    made: list[Library], layer: ConvLayer, part: str, plan: Plan, features: Iterable[str]
) -> None:
    """Of a step by each of the libraries, and near the reference."""
    op, case = layer.case(part)
    one, plain = trainers.one_node(op, case), without(plan, features)
    results = [
        trainers.run(library, p, one) for library, p in zip(made, (plan, plan, plain, plain), strict=True)
    ]
    for key, array in trainers.expected(op, case).items():
        for found in results:
            assert not trainers.disagreement(found[key], array, 64)
            assert found[key].tobytes() == results[0][key].tobytes()
