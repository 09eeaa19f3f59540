"""Plans for a library that is there: they do with its kernels and features, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trainers
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import ElementType, Plan
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase

REGISTRY = registry()
PACKED = "_packed"
FUNCTIONS = frozenset(kernel.function for kernel in REGISTRY.all_kernels())
PLAIN_OF_PACKED = frozenset(name.removesuffix(PACKED) for name in FUNCTIONS if name.endswith(PACKED))
OWN = {
    "depthwise_conv",
    "grouped_conv_packed",
    "winograd_conv_packed",
}  # of convolutions that others compute as well
FASTER = {"conv.exchanged", "conv.padded"}
HINTS = {
    f"{REGISTRY.stems[kernel.function]}.{hint}"
    for op in REGISTRY.ops.values()
    for kernel in op.kernels
    for hint in kernel.hints
}
OPS = tuple(
    op
    for _, op in sorted(REGISTRY.ops.items())
    if op.cases is not None
    and op.reference is not None
    and any(kernel.function in PLAIN_OF_PACKED for kernel in op.kernels)
)
LAYERS = {
    "large": ConvLayer((2, 64, 28, 28), (64, 64, 3, 3), pads=(1, 1, 1, 1)),
    "as wide as vectors": ConvLayer((1, 64, 40, 40), (70, 64, 3, 3)),
    "by two": ConvLayer((1, 40, 64, 64), (50, 40, 3, 3), strides=(2, 2)),
    "small": ConvLayer((2, 5, 7, 6), (3, 5, 3, 3), pads=(1, 0, 1, 2)),
    "small by two": ConvLayer((2, 5, 7, 6), (3, 5, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "small, one element": ConvLayer((3, 5, 7, 6), (3, 5, 1, 1)),
    "small with gaps": ConvLayer((1, 2, 9, 11), (3, 2, 3, 3), dilations=(2, 3)),
    "small groups": ConvLayer((2, 6, 7, 6), (4, 3, 3, 3), pads=(1, 1, 1, 1), group=2),
    "a small line": ConvLayer((2, 5, 17), (3, 5, 4), pads=(1, 2)),
    "a small volume": ConvLayer((1, 3, 4, 5, 6), (2, 3, 2, 3, 2), pads=(1,) * 6),
    "groups": ConvLayer((1, 64, 28, 28), (64, 4, 3, 3), pads=(1, 1, 1, 1), group=16),
    "one filter a channel": ConvLayer((1, 64, 32, 32), (64, 1, 3, 3), pads=(1, 1, 1, 1), group=64),
}
EVERYTHING = FUNCTIONS | frozenset(REGISTRY.all_features())
HELD = {
    "packed": EVERYTHING - PLAIN_OF_PACKED | {"conv"},
    "packed convolutions": EVERYTHING - {"conv", "conv_dequantize"} - OWN - HINTS,
    "without parts": EVERYTHING - OWN - HINTS - FASTER,
    "plain": frozenset(name for name in EVERYTHING if not name.endswith((PACKED, ".packed")))
    - OWN
    - HINTS
    - FASTER,
}
# Kernels that take layers which packing has no kernel for: in reverse, of several lengths, of one filter a channel.
RECURRENT = {f"{name}{part}" for name in ("lstm", "gru", "rnn") for part in ("", "_grad")}
NEVER_PACKED = {"packed": {*RECURRENT, "conv_dequantize"}, "packed convolutions": {"conv", "conv_dequantize"}}
each_held = pytest.mark.parametrize("held", HELD)


def _cases() -> list[tuple[str, Op, TestCase]]:
    """Of every operator that has a kernel for packed products: the first case, the last, and of layers every part."""
    found = []
    for op in OPS:
        assert op.cases is not None
        cases = tuple(op.cases(np.random.default_rng(2024)))
        chosen = sorted({0, len(cases) // 3, len(cases) // 2, len(cases) - 1})
        found += [(f"{op.key} {cases[i].name}", op, cases[i]) for i in chosen]
    for name, layer in LAYERS.items():
        for part in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT):
            found.append((f"{name}, {part}", *layer.case(part)))
    return found


@each_held
def test_plans_do_with_the_kernels_of_a_library(held: str, tmp_path: Path) -> None:
    choice, plans, wrong = KernelChoice(held=HELD[held]), dict[str, tuple[trainers.OneNode, Plan]](), []
    cases = _cases()
    for name, op, case in cases:
        one = trainers.one_node(op, case)
        plans[name] = one, trainers.plan_of(one.artifacts, REGISTRY, choice)
    contents = trainers.contents_of(plan for _, plan in plans.values())
    needed = {kernel.function for kernel in contents.kernels if ElementType.FLOAT in kernel.types}
    needed |= contents.features
    assert needed - HELD[held] <= NEVER_PACKED.get(held, set())
    library = trainers.library_of(contents, REGISTRY, tmp_path)
    for name, op, case in cases:
        one, plan = plans[name]
        found = trainers.run(library, plan, one)
        for key, wanted in trainers.expected(op, case).items():
            problem = trainers.disagreement(found[key], wanted, max(case.ulps, 64))
            if problem:
                wrong.append(f"{name}, {key}: {problem}")
    assert not wrong, "\n".join(wrong)
