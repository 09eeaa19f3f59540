"""Packed convolutions of small layers, as `--packing all` has them: any windows, steps, groups and images, in one
library with the features of all, against sums in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops import registry
from minbuild.ops.convolution import conv, conv_layer
from minbuild.ops.core.definition import TestCase

KNOWN = registry()
CONV, GRAD = KNOWN.ops[":Conv"], KNOWN.ops["com.microsoft:ConvGrad"]
LAYERS, SEED = 100, 2
EPSILON = 2.0**-24


def _layers(seed: int) -> Sequence[tuple[TestCase, TestCase]]:
    """Each as the case of its outputs and that of its gradients."""
    random = np.random.default_rng(seed)
    found: list[tuple[TestCase, TestCase]] = []
    while len(found) < LAYERS:
        taps, stride = (
            int(random.choice(sizes)) for sizes in ([1, 1, 2, 3, 3, 4, 5, 7], [1, 1, 1, 2, 2, 3, 4])
        )
        dilation = int(random.choice([1, 1, 1, 2])) if taps > 1 else 1
        groups = int(random.choice([1, 1, 1, 1, 2, 3]))
        channels, filters = (
            int(random.choice([8, 16, 16, 32, 48, 80, 112, *random.integers(3, 100, 7)])) for _ in "CM"
        )
        lines = random.random() < 0.15
        size = tuple(int(n) for n in random.integers(3, 25, 1 if lines else 2))
        pads = tuple(int(n) for n in random.integers(0, min(taps, 3), 2 * len(size)))
        span = (taps - 1) * dilation + 1
        outputs = [
            (n + before + after - span) // stride + 1
            for n, before, after in zip(size, pads[: len(size)], pads[len(size) :], strict=True)
        ]
        if min(outputs) < 1:
            continue
        batch = int(random.choice([1, 2, 3, 5, 8, 9]))
        attributes = {"kernel_shape": (taps,) * len(size), "strides": (stride,) * len(size), "pads": pads}
        attributes |= {"group": groups, "dilations": (dilation,) * len(size), "auto_pad": "NOTSET"}
        x = random.standard_normal((batch, groups * channels, *size)).astype(np.float32)
        w = random.standard_normal((groups * filters, channels, *(taps,) * len(size))).astype(np.float32)
        bias = random.standard_normal(groups * filters).astype(np.float32) if random.random() < 0.5 else None
        dy = random.standard_normal((batch, groups * filters, *outputs)).astype(np.float32)
        forward = TestCase("outputs", (x, w) if bias is None else (x, w, bias), attributes)
        absent = frozenset({2}) if bias is None else frozenset()
        found.append((forward, TestCase("gradients", (dy, x, w), attributes, outputs=3, absent=absent)))
    return found


@pytest.mark.parametrize("avx512", [False, True], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("winograd", [True, False], ids=["winograd", "packed"])
def test_small_layers_are_rounded_as_sums_of_products(winograd, avx512, tmp_path, monkeypatch):
    monkeypatch.setattr(conv_layer, "_SOME_WORK", 1 << 10)
    if not winograd:
        monkeypatch.setattr(conv, "takes_winograd", lambda *_, **__: False)
    choice, made = KernelChoice(largest={}), []
    for pair in _layers(SEED):
        for op, case in zip((CONV, GRAD), pair, strict=True):
            one = trainers.one_node(op, case)
            made.append((op, case, one, trainers.plan_of(one.artifacts, KNOWN, choice)))
    assert sum("conv_packed" in {k.function for k in plan.kernels} for *_, plan in made) > len(made) // 2
    contents = replace(trainers.contents_of(plan for *_, plan in made), avx512=avx512)
    library = trainers.library_of(contents, KNOWN, tmp_path)
    wrong = []
    for op, case, one, plan in made:
        found = trainers.run(library, plan, one)
        exact = [np.asarray(a, np.float64) for a in case.inputs]
        wanted = op.reference(case.attributes, *exact)
        sizes = op.reference(case.attributes, *(np.abs(a) for a in exact))
        wanted, sizes = ((each if isinstance(each, tuple) else (each,)) for each in (wanted, sizes))
        for i, (value, size) in enumerate(zip(wanted, sizes, strict=True)):
            if f"y{i}" in found and value is not None:
                terms = 64 + 4 * sum(np.asarray(case.inputs[0]).shape)  # roundings of any sum, generously
                error = np.abs(found[f"y{i}"] - value) / (EPSILON * size + 1e-30)
                if not (error <= terms).all():  # nor NaN
                    wrong.append((op.name, i, [a.shape for a in case.inputs], case.attributes, error.max()))
    assert not wrong
