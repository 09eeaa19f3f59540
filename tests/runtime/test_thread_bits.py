"""Kernels at sizes of layers: any number of threads computes the same bits, where threads share all that they can.

Cases of operators are too small for choices that depend on sizes: a part of a product that went another way than the
whole would add in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import trainers
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session

MOST = 8
STEMS = (
    "conv",
    "depthwise_conv",
    "grouped_conv",
    "winograd_conv",
    "gemm",
    "contraction",
    "lstm",
    "gru",
    "rnn",
    "reduce",
)
DIVIDES = b"kLeastWork = 1 << 20, kLeastBytes = 1 << 16", b"kLeastWork = 1, kLeastBytes = 1"
CHANNELS = (1, 3, 4, 8, 16, 24, 33, 48, 64, 96, 128, 130)
SIZES = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, 128, 129, 200)
RANDOM = 360  # cases
Case = tuple[str, TestCase]


FUNCTIONS = frozenset(kernel.function for kernel in registry().all_kernels())
PACKED = frozenset(name for name in FUNCTIONS if name.endswith("_packed"))
PLAIN = frozenset(name.removesuffix("_packed") for name in PACKED)
OWN = frozenset({"depthwise_conv", "grouped_conv_packed", "winograd_conv_packed"})  # of some convolutions
CHOICES = (  # as sizes ask for; packed, where there is a choice; not packed
    EVERY_KERNEL,
    KernelChoice(held=FUNCTIONS - PLAIN - OWN | frozenset(registry().all_features())),
    KernelChoice(packs=False),
)


@pytest.fixture(scope="module", params=[False, True], ids=["without AVX-512", "with AVX-512"])
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Library]:
    """These kernels by the most threads of a call, each of which is divided, however small it is."""
    known, found = registry(), {}
    for threads in (1, MOST):
        contents = replace(trainers.everything_of(STEMS, known), threads=threads, avx512=request.param)
        sources = dict(emit_sources(contents, known))
        name = next(path for path in sources if path.endswith("lib/threads/parallel.h"))
        assert sources[name].count(DIVIDES[0]) == 1
        sources[name] = sources[name].replace(*DIVIDES)
        path = tmp_path_factory.mktemp("library") / "library.so"
        path.write_bytes(shared_library(sources))
        found[threads] = Library(path)
    return found


def convolution(
    random: np.random.Generator, part: int, batch: int, channels: int, size: int, filters: int, **window: int
) -> Case:
    """The outputs of a convolution, or the gradients of its inputs or weights: `part` 0 to 2."""
    span, stride, pad, groups = (
        window.get(*each) for each in (("span", 1), ("stride", 1), ("pad", 0), ("groups", 1))
    )
    outputs = (size + 2 * pad - span) // stride + 1
    attributes = {
        "kernel_shape": (span,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4, "group": groups,
        "dilations": (1, 1), "auto_pad": "NOTSET",
    }  # fmt: skip
    shapes = (
        (batch, channels, size, size),
        (filters, channels // groups, span, span),
        (batch, filters, *(outputs,) * 2),
    )
    x, w, dy = (random.standard_normal(shape) for shape in shapes)
    if part == 0:
        return ":Conv", TestCase("", (x, w), attributes)
    absent = frozenset({1, 2} if part == 1 else {0, 2})
    return "com.microsoft:ConvGrad", TestCase("", (dy, x, w), attributes, outputs=3, absent=absent)


def some_convolution(random: np.random.Generator) -> Case:
    channels, filters, batch = (int(random.choice(of)) for of in (CHANNELS, CHANNELS, (1, 2, 3, 4, 8, 9)))
    groups = int(random.choice([1, 1, 1, channels, 4]))
    channels, filters = (-(-n // groups) * groups for n in (channels, filters))
    span, stride = int(random.choice([1, 1, 2, 3, 5])), int(random.choice([1, 1, 2]))
    size = max(span, int(random.choice([1, 4, 5, 7, 8, 9, 14, 17])))
    window = {"span": span, "stride": stride, "pad": int(random.choice([0, span // 2])), "groups": groups}
    return convolution(random, int(random.integers(3)), batch, channels, size, filters, **window)


def some_product(random: np.random.Generator) -> Case:
    m, n, k = (int(random.choice(SIZES)) for _ in range(3))
    a, b = (int(random.integers(2)) for _ in range(2))
    shapes = (k, m) if a else (m, k), (n, k) if b else (k, n)
    if random.integers(2):
        return ":Gemm", TestCase("", tuple(map(random.standard_normal, shapes)), {"transA": a, "transB": b})
    heads = ((), (2,), (3, 4))[random.integers(3)]
    arrays = tuple(random.standard_normal((*heads, *shape)) for shape in shapes)
    return "com.microsoft:FusedMatMul", TestCase("", arrays, {"transA": a, "transB": b, "alpha": 0.5})


def some_recurrence(random: np.random.Generator) -> Case:
    kind, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[random.integers(3)]
    hidden, inputs = (int(random.choice([8, 16, 24, 33, 64, 100])) for _ in range(2))
    steps, batch, ways = (int(random.choice(of)) for of in ((1, 3, 8), (1, 2, 4, 8, 9), (1, 2)))
    rows = gates * hidden
    shapes = (steps, batch, inputs), (ways, rows, inputs), (ways, rows, hidden), (ways, 2 * rows)
    attributes = {"hidden_size": hidden} | ({"direction": "bidirectional"} if ways == 2 else {})
    return f":{kind}", TestCase("", tuple(map(random.standard_normal, shapes)), attributes, outputs=2)


def cases() -> Iterator[Case]:
    random = np.random.default_rng(9)
    # Rows of parts are dot products, or tiles, where those of the whole are the other.
    for batch, channels, filters in (
        (4, 64, 128),
        (4, 336, 64),
        (4, 64, 64),
        (8, 64, 128),
        (4, 128, 64),
        (9, 96, 128),
    ):
        yield convolution(random, 2, batch, channels, 8, filters)
    makers: tuple[Callable[[np.random.Generator], Case], ...] = (
        some_convolution,
        some_product,
        some_recurrence,
    )
    for _ in range(RANDOM):
        yield makers[random.choice(3, p=[0.5, 0.3, 0.2])](random)


def test_any_number_of_threads_computes_the_same_bits(libraries: dict[int, Library]) -> None:
    known, unlike, kernels = registry(), [], set()
    for i, (operator, case) in enumerate(cases()):
        one = trainers.one_node(known.ops[operator], case)
        program = optimize(lower(one.artifacts, known, {}), known)
        found = []
        for most, threads in ((1, 1), (MOST, 1), (MOST, 2), (MOST, 3), (MOST, 5), (MOST, MOST)):
            plan = build_plan(program, known, most, kernels=CHOICES[i % len(CHOICES)])
            session = Session(libraries[most], encode_plan(plan, {}), None, threads=threads)
            found.append(b"".join(y.tobytes() for y in session.run(TRAIN, one.feeds)))
            session.close()
        kernels |= {kernel.function for kernel in plan.kernels}
        if set(found) != {found[0]}:
            unlike.append((operator, [x.shape for x in case.inputs if x is not None], case.attributes))
    assert unlike == []
    products = ("gemm", "contraction", "lstm", "gru", "rnn")
    assert kernels >= {"conv", "conv_packed", *products, *(f"{name}_packed" for name in products)}
