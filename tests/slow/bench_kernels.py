"""Rates of kernels at real size beside PyTorch's, one thread: reports/baseline/kernels.md.

    python tests/slow/bench_kernels.py --torch PYTHON [--only TEXT] [--seconds 0.03] [--rounds 4] [--dry]

PYTHON has torch. Every row is a kernel of its own: as a trainer of one operator here, as one call there. Both take
short turns in one run, in several rounds over all rows, and the best counts, in processor time: neighbours slow a
machine down for seconds to minutes. Rates are 2 operations for a multiplication and its addition, or bytes of
arguments and results read and written once. The peak is what independent multiplications and additions reach here
without memory, in the widest vectors that both have, measured between the turns of each row: processors change their
clocks within minutes. --only measures the rows that contain TEXT and, as --dry does, leaves the report alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[2])]
import trainers  # noqa: E402
from shared_kernels import compile_library  # noqa: E402

from minbuild.ops import registry  # noqa: E402
from minbuild.ops.convolution.sliding_window import axes  # noqa: E402
from minbuild.ops.core.definition import TestCase  # noqa: E402
from minbuild.planning.large_products import widens  # noqa: E402
from minbuild.training.c_api import CTensor, to_tensor  # noqa: E402
from minbuild.training.library import TRAIN, aligned_copy  # noqa: E402

REPORT = HERE.parents[2] / "reports" / "baseline" / "kernels.md"
TURNS = 8  # of each, in a round
PEAK_TURN = 0.01  # seconds

RATES, BYTES = "GFLOP/s", "GB/s"


@dataclass(frozen=True)
class Row:
    """A kernel on some sizes: the operators that compute it here, and the statement that does there. `work` is the
    number of operations or of bytes; `shapes` are the arrays of that statement, by name."""

    group: str
    name: str
    unit: str
    work: float
    cases: tuple[tuple[str, TestCase], ...]
    shapes: dict[str, tuple[int, ...]]
    before: str
    statement: str


def products() -> Iterator[Row]:
    """M x N x K in the four orders: N as stored, T transposed, of A and B."""
    sizes = [(m, 768, 768) for m in (8, 16, 32, 64, 128)] + [(128, 3072, 768), (1024, 1024, 1024)]
    for m, n, k in sizes:
        for order in ("NN", "NT", "TN", "TT"):
            a, b = (k, m) if order[0] == "T" else (m, k), (n, k) if order[1] == "T" else (k, n)
            yield _product(f"{m}x{n}x{k} {order}", a, b, order, 2.0 * m * n * k, RATES)


def outer_products() -> Iterator[Row]:
    """The gradients of weights at batch 1, which are written once."""
    for m, n in ((2048, 2048), (1024, 4096)):
        yield _product(f"outer product {m}x{n}", (1, m), (1, n), "TN", 4.0 * m * n, BYTES)


def _product(name: str, a: tuple[int, ...], b: tuple[int, ...], order: str, work: float, unit: str) -> Row:
    turned = {"transA": int(order[0] == "T"), "transB": int(order[1] == "T")}
    case = TestCase(name, (_random(a), _random(b)), turned)
    left, right = ("a.t()" if order[0] == "T" else "a"), ("b.t()" if order[1] == "T" else "b")
    return Row(
        *("Matrix products", name, unit, work, ((":Gemm", case),), {"a": a, "b": b}),
        before=f"c = torch.mm({left}, {right})",
        statement=f"torch.mm({left}, {right}, out=c)",
    )


# Channels, size, filters, window, stride, groups, batch: layers of ResNet-18, ResNet-50 and MobileNetV2 at 224 x 224.
LAYERS = (
    ("7x7 stem", 3, 224, 64, 7, 2, 1, 1),
    ("3x3", 64, 56, 64, 3, 1, 1, 1),
    ("3x3 by 2", 64, 56, 128, 3, 2, 1, 1),
    ("3x3", 128, 28, 128, 3, 1, 1, 1),
    ("3x3", 256, 14, 256, 3, 1, 1, 1),
    ("3x3", 512, 7, 512, 3, 1, 1, 1),
    ("3x3", 512, 7, 512, 3, 1, 1, 8),
    ("1x1", 64, 56, 256, 1, 1, 1, 1),
    ("1x1", 1024, 14, 256, 1, 1, 1, 1),
    ("1x1", 512, 7, 2048, 1, 1, 1, 8),
    ("1x1", 32, 56, 192, 1, 1, 1, 1),
    ("depthwise 3x3", 96, 112, 96, 3, 2, 96, 1),
    ("depthwise 3x3", 144, 56, 144, 3, 1, 144, 1),
    ("depthwise 3x3", 384, 14, 384, 3, 1, 384, 1),
    ("depthwise 3x3", 960, 7, 960, 3, 1, 960, 8),
)
# Of VGG, DenseNet, ResNeXt, RegNet, ConvNeXt, MnasNet, MobileNetV3 and DeepLab, the last with gaps of one element.
OTHER_LAYERS = (
    ("3x3", 3, 224, 64, 3, 1, 1, 1),
    ("3x3", 128, 28, 32, 3, 1, 1, 1),
    ("1x1", 512, 28, 128, 1, 1, 1, 1),
    ("3x3 of 32 groups", 128, 56, 128, 3, 1, 32, 1),
    ("3x3 of 32 groups by 2", 256, 56, 256, 3, 2, 32, 1),
    ("3x3 of 32 groups", 512, 14, 512, 3, 1, 32, 1),
    ("3x3 of 32 groups", 1024, 7, 1024, 3, 1, 32, 8),
    ("3x3 of 13 groups", 104, 28, 104, 3, 1, 13, 1),
    ("3x3 of 26 groups by 2", 208, 28, 208, 3, 2, 26, 1),
    ("4x4 by 4", 3, 224, 96, 4, 4, 1, 1),
    ("2x2 by 2", 96, 56, 192, 2, 2, 1, 1),
    ("1x1 by 2", 256, 56, 512, 1, 2, 1, 1),
    ("depthwise 7x7", 96, 56, 96, 7, 1, 96, 1),
    ("depthwise 7x7", 384, 14, 384, 7, 1, 384, 1),
    ("depthwise 7x7", 768, 7, 768, 7, 1, 768, 8),
    ("depthwise 5x5", 240, 28, 240, 5, 1, 240, 1),
    ("depthwise 5x5 by 2", 240, 28, 240, 5, 2, 240, 1),
    ("depthwise 5x5", 672, 14, 672, 5, 1, 672, 1),
    ("depthwise 5x5", 960, 7, 960, 5, 1, 960, 1),
    ("dilated 3x3", 256, 28, 256, 3, 1, 1, 1),
)


def convolutions() -> Iterator[Row]:
    for kind, channels, size, filters, window, stride, groups, batch in LAYERS + OTHER_LAYERS:
        gap = 2 if kind.startswith("dilated") else 1
        shape, pad = (
            (filters, channels // groups, window, window),
            0 if window == stride else gap * (window // 2),
        )
        attributes = {"kernel_shape": (window,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}
        attributes |= {"group": groups, "dilations": (gap,) * 2, "auto_pad": "NOTSET"}
        out = tuple(int(a.outputs) for a in axes(attributes, (size, size), shape[2:]))
        x, w, dy = (batch, channels, size, size), shape, (batch, filters, *out)
        work = 2.0 * np.prod(dy) * np.prod(shape[1:])
        images = f"{kind} {channels}->{filters} at {size}x{size}" + (f", batch {batch}" if batch > 1 else "")
        given = f"None, ({stride},)*2, ({pad},)*2, ({gap},)*2, False, (0, 0), {groups}"
        for part, absent, mask in (
            ("forward", frozenset(), ()),
            ("input gradient", frozenset({1, 2}), (True, False, False)),
            ("weight gradient", frozenset({0, 2}), (False, True, False)),
        ):
            if not mask:
                cases = ((":Conv", TestCase(part, (_random(x), _random(w)), attributes)),)
                statement = f"torch.conv2d(x, w, None, {stride}, {pad}, {gap}, {groups})"
            else:
                arrays = (_random(dy), _random(x), _random(w))
                case = TestCase(part, arrays, attributes, outputs=3, absent=absent)
                cases = (("com.microsoft:ConvGrad", case),)
                statement = f"torch.ops.aten.convolution_backward(dy, x, w, {given}, {mask})"
            shapes = {"x": x, "w": w, "dy": dy}
            yield Row("Convolutions", f"{images}, {part}", RATES, work, cases, shapes, "", statement)


def rows_of_numbers() -> Iterator[Row]:
    """Softmax, LayerNorm, GELU and their gradients, on arrays that fit the second nearest cache or the third."""
    grad = "com.microsoft"
    for count in (128, 196, 197):
        x = (12 * count, count)
        once, shapes = 4.0 * np.prod(x), {"x": x, "dy": x}
        y = _random(x)
        forward = ((":Softmax", TestCase("y", (y,), {"axis": -1})),)
        back = ((f"{grad}:SoftmaxGrad_13", TestCase("dx", (_random(x), y), {"axis": -1})),)
        name = f"softmax, rows of {count}"
        yield Row("Rows", name, BYTES, 2 * once, forward, shapes, "", "torch.softmax(x, -1)")
        yield Row(
            *("Rows", f"{name}, gradient", BYTES, 3 * once, back, shapes, "y = torch.softmax(x, -1)"),
            statement="torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32)",
        )
    for rows, length in ((197, 192), (1024, 256), (1024, 768)):
        x = (rows, length)
        once, shapes = 4.0 * rows * length, {"x": x, "dy": x, "w": (length,), "b": (length,)}
        scale, means = (_random((length,)), _random((length,))), (_random((rows, 1)), _random((rows, 1)))
        forward = ((":LayerNormalization", TestCase("y", (_random(x), *scale), {"axis": -1}, outputs=3)),)
        arrays = (_random(x), _random(x), scale[0], *means)
        back = ((f"{grad}:LayerNormalizationGrad", TestCase("dx", arrays, {"axis": -1}, outputs=3)),)
        made = f"torch.native_layer_norm(x, ({length},), w, b, 1e-5)"
        name = f"LayerNorm {rows}x{length}"
        yield Row("Rows", name, BYTES, 2 * once, forward, shapes, "", made)
        yield Row(
            *("Rows", f"{name}, gradient", BYTES, 3 * once, back, shapes, f"_, m, s = {made}"),
            statement=f"torch.ops.aten.native_layer_norm_backward(dy, x, ({length},), m, s, w, b, (True,)*3)",
        )
    for shape in ((197, 768), (1024, 1024)):
        once, shapes = 4.0 * np.prod(shape), {"x": shape, "dy": shape}
        forward = ((f"{grad}:Gelu", TestCase("y", (_random(shape),))),)
        back = ((f"{grad}:GeluGrad", TestCase("dx", (_random(shape), _random(shape)))),)
        name, gelu = f"GELU {shape[0]}x{shape[1]}", "torch.ops.aten.gelu"
        yield Row("Rows", name, BYTES, 2 * once, forward, shapes, "", f"{gelu}(x)")
        yield Row("Rows", f"{name}, gradient", BYTES, 3 * once, back, shapes, "", f"{gelu}_backward(dy, x)")


def losses() -> Iterator[Row]:
    """Of language models. Both sides write the log probabilities and the gradient of all scores."""
    grad = "com.microsoft:SoftmaxCrossEntropyLossGrad"
    for rows, classes in ((512, 32000), (128, 50257)):
        shape, labels = (rows, classes), np.arange(rows) * 37 % classes
        y, mean = _random(shape) - 12, {"reduction": "mean"}
        once, shapes = 4.0 * rows * classes, {"x": shape}
        forward = ((":SoftmaxCrossEntropyLoss", TestCase("loss", (y, labels), mean, outputs=2)),)
        back = ((grad, TestCase("dx", (np.asarray(1.0), y, labels), mean)),)
        given = f"labels = torch.arange({rows}) * 37 % {classes}"
        name = f"softmax cross-entropy {rows}x{classes}"
        loss = "torch.nn.functional.cross_entropy(x, labels)"
        yield Row("Rows", name, BYTES, 2 * once, forward, shapes, given, loss)
        aten = "torch.ops.aten"
        chosen = f"{aten}.nll_loss_backward(one, y, labels, None, 1, -100, n)"
        before = f"{given}; y = torch.log_softmax(x, 1); one, n = torch.tensor(1.0), torch.tensor({rows}.0)"
        yield Row(
            *("Rows", f"{name}, gradient", BYTES, 2 * once, back, shapes, before),
            statement=f"{aten}._log_softmax_backward_data({chosen}, y, 1, torch.float32)",
        )


def recurrences() -> Iterator[Row]:
    """A layer forward, and forward and back."""
    layers = (("LSTM", 4, 1024, 64, 1), ("GRU", 3, 1024, 64, 1), ("RNN", 1, 1024, 64, 1))
    layers += (("LSTM", 4, 256, 128, 2), ("GRU", 3, 256, 128, 2))
    for kind, gates, hidden, steps, directions in layers:
        features = hidden
        for batch in (1, 8):
            x, state = (steps, batch, features), (directions, batch, hidden)
            w = (directions, gates * hidden, hidden)
            y = (steps, directions, batch, hidden)
            saved = (*y[:-1], gates * hidden)
            attributes = {
                "hidden_size": hidden,
                "direction": "forward" if directions == 1 else "bidirectional",
            }
            if kind == "GRU":
                attributes |= {"linear_before_reset": 1}
            bias = (directions, 2 * gates * hidden)
            weights = tuple(_random(s) * 0.03 for s in (w, w, bias))
            inputs = (_random(x), *weights, None, _random(state) * 0.1)
            more = (_random(state) * 0.1,) if kind == "LSTM" else ()
            training = "com.microsoft:LSTMTraining" if more else "com.microsoft:GRUTraining"
            count = {"LSTM": 5, "GRU": 3, "RNN": 2}[kind]
            forward = (
                training if kind != "RNN" else ":RNN",
                TestCase("y", (*inputs, *more), attributes, outputs=count),
            )
            ran = [np.abs(_random(s)) * 0.2 for s in (y, y, saved)]
            flow = _random(y)
            x_w_r, h0 = inputs[:3], inputs[5]
            given = {
                "LSTM": (*x_w_r, None, h0, *more, *ran, flow),
                "GRU": (*x_w_r, inputs[3], None, h0, ran[0], ran[2], flow, None),
                "RNN": (*x_w_r, None, h0, ran[0], flow, None),
            }[kind]
            domain = "minbuild" if kind == "RNN" else "com.microsoft"
            absent = frozenset({4, 5}) if kind == "LSTM" else frozenset({4})
            case = TestCase("dx", given, attributes, outputs=6 if kind == "LSTM" else 5, absent=absent)
            back = (f"{domain}:{kind}Grad", case)
            shapes = {"x": x, "dy": (steps, batch, directions * hidden)}
            both = ", bidirectional=True" if directions == 2 else ""
            before = f"net = torch.nn.{kind}({features}, {hidden}{both}); x.requires_grad_()"
            work = 2.0 * steps * batch * 2 * gates * hidden * hidden * directions
            for name, cases, times, ended in (
                ("forward", (forward,), 1, "net(x)"),
                ("forward and back", (forward, back), 3, "net(x)[0].backward(dy)"),
            ):
                ways = " both ways" if directions == 2 else ""
                label = f"{kind} of {hidden}{ways}, {steps} steps, batch {batch}, {name}"
                yield Row("Recurrences", label, RATES, times * work, cases, shapes, before, ended)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape)


GROUPS: tuple[Callable[[], Iterator[Row]], ...] = (
    *(products, outer_products, convolutions),
    *(rows_of_numbers, losses, recurrences),
)

# ------------------------------------------------------------------------------------------------ measuring

TORCH = r"""
import json, sys, time
import torch
torch.set_num_threads(1)
for line in sys.stdin:
    before, statement, shapes, seconds = json.loads(line)
    own = {name: torch.randn(shape) for name, shape in shapes.items()} | {"torch": torch}
    torch.set_grad_enabled("backward(dy)" in statement and "net" in statement)
    exec(before, own)
    code = compile(statement, "statement", "eval")
    eval(code, own)
    best, end = 1e9, time.process_time() + seconds
    while best == 1e9 or time.process_time() < end:
        start = time.process_time()
        eval(code, own)
        best = min(best, time.process_time() - start)
    print(json.dumps(best), flush=True)
"""


class Torch:
    """A process that runs statements of PyTorch."""

    def __init__(self, python: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([python, "-c", TORCH], stdin=pipe, stdout=pipe, text=True)

    def seconds(self, row: Row, turn: float) -> float:
        """Of the best call in a turn."""
        assert self.process.stdin is not None and self.process.stdout is not None
        job = (row.before, row.statement, row.shapes, turn)
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def step_of(operator: str, case: TestCase, folder: Path) -> Callable[[], None]:
    """A call of the library of one operator, without what Python adds to it but for a microsecond."""
    known = registry()
    one = trainers.one_node(known.ops[operator], case)
    plan = trainers.plan_of(one.artifacts, known)
    own = Path(tempfile.mkdtemp(dir=folder))  # a library that is loaded must not be written again
    contents = trainers.contents_of((plan,))
    contents = replace(
        contents, avx512=widens(contents.kernels, contents.features)
    )  # as in the default build
    library = trainers.library_of(contents, known, own)
    session = trainers.session_of(library, plan, one.state)
    arrays = [_as_torch_has_it(x) for x in one.feeds]
    tensors = (CTensor * len(arrays))(*map(to_tensor, arrays))
    session.run(TRAIN, arrays)  # whatever is wrong with it is found here

    def run() -> None:
        library.run(session._session, TRAIN, tensors, len(arrays))

    run.keeps = session, arrays  # type: ignore[attr-defined]
    return run


def _as_torch_has_it(x: np.ndarray) -> np.ndarray:
    """A copy from the start of a cache line, where PyTorch has its tensors; numbers keep their rank 0."""
    return aligned_copy(x.tobytes()).view(x.dtype).reshape(x.shape)


def our_seconds(step: Callable[[], None], turn: float) -> float:
    best, end = float("inf"), time.process_time() + turn
    while best == float("inf") or time.process_time() < end:
        start = time.process_time()
        step()
        best = min(best, time.process_time() - start)
    return best


PEAK = """
#include "lib/simd/vec.h"
namespace minbuild {
struct Sums {
  template <class W>
  static MB_INLINE float run(int rounds, float factor) {
    using V = typename W::template of<float>;
    V x(factor), sums[12];
    unroll<12>([&](auto i) MB_LAMBDA { sums[i] = x; });
    for (; rounds > 0; --rounds) unroll<12>([&](auto i) MB_LAMBDA { sums[i] = muladd(sums[i], x, x); });
    unroll<11>([&](auto i) MB_LAMBDA { sums[0] = sums[0] + sums[i + 1]; });
    return sum(sums[0]);
  }
};
}  // namespace minbuild
extern "C" __attribute__((visibility("default"))) float sums(int rounds, float factor) {
  return minbuild::run_at<minbuild::Sums, 64>(minbuild::widest_bytes(), rounds, factor);
}
extern "C" __attribute__((visibility("default"))) int lanes() { return minbuild::widest_bytes() / 4; }
"""


def peak_of(folder: Path) -> Callable[[], float]:
    """Operations a nanosecond, of independent sums in registers, as they are at the time of a call."""
    compiler = (sys.executable, "-m", "ziglang", "c++", "-O2", "-DMINBUILD_AVX512=1")
    library = compile_library(folder, PEAK, compiler)
    library.sums.argtypes = (ctypes.c_int, ctypes.c_float)
    library.sums.restype = ctypes.c_float
    rounds = 1 << 18
    work = 2.0 * 12 * library.lanes() * rounds

    def peak() -> float:
        return work / our_seconds(lambda: library.sums(rounds, 0.5), PEAK_TURN) / 1e9

    return peak


@dataclass
class Best:
    """The shortest times of a row, in seconds: `ours` of each of its operators, and `theirs` of PyTorch; and the
    highest peak meanwhile, in GFLOP/s."""

    row: Row
    steps: list[Callable[[], None]]
    ours: list[float]
    theirs: float = float("inf")
    peak: float = 0.0

    @classmethod
    def of(cls, row: Row, folder: Path) -> Best:
        steps = [step_of(operator, case, folder) for operator, case in row.cases]
        return cls(row, steps, [float("inf")] * len(steps))

    def measure(self, torch: Torch, peak: Callable[[], float], turn: float) -> None:
        for _ in range(TURNS):
            self.peak = max(self.peak, peak())
            self.ours = [min(now, our_seconds(s, turn)) for now, s in zip(self.ours, self.steps, strict=True)]
            self.peak = max(self.peak, peak())
            self.theirs = min(self.theirs, torch.seconds(self.row, turn))

    @property
    def ratio(self) -> float:
        return sum(self.ours) / self.theirs

    def line(self) -> str:
        ours, row = sum(self.ours), self.row
        rate, other = row.work / ours / 1e9, row.work / self.theirs / 1e9
        share = f"{100 * rate / self.peak:.0f} %" if row.unit == RATES else ""
        cells = (row.name, f"{ours * 1e3:.3f}", f"{rate:.1f} {row.unit}", share, f"{other:.1f}")
        return f"| {' | '.join(cells)} | {self.ratio:.2f} |"


def report(all_best: list[Best]) -> str:
    lines, group = [PREFACE], ""
    for best in all_best:
        if best.row.group != group:
            group = best.row.group
            lines += ["", f"## {group}", "", "| kernel | ms | rate | of peak | torch | time / torch |"]
            lines += ["|---|--:|--:|--:|--:|--:|"]
        lines.append(best.line())
    slower = [f"{best.row.name} ({best.ratio:.2f})" for best in all_best if best.ratio > 1]
    peaks = [best.peak for best in all_best]
    lines += ["", f"Slower than PyTorch, with the ratio of times: {'; '.join(slower) or 'none'}."]
    lines += [f"Peaks were {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", required=True, metavar="PYTHON")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=0.03, help="of a turn")
    parser.add_argument("--rounds", type=int, default=4, help="over all rows")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    torch, all_best = Torch(options.torch), []
    rows = [row for rows in GROUPS for row in rows() if options.only in f"{row.group}: {row.name}"]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        peak = peak_of(folder)
        for round_ in range(options.rounds):
            for i, row in enumerate(rows):
                if round_ == 0:
                    all_best.append(Best.of(row, folder))
                all_best[i].measure(torch, peak, options.seconds)
                print(all_best[i].line(), flush=True)
            if not options.dry and not options.only:
                REPORT.write_text(report(all_best), "utf-8")
    torch.end()


PREFACE = """# Kernels

Written by `python tests/slow/bench_kernels.py`: rates of kernels at sizes of real networks, one thread, float32, the
default build, beside PyTorch's in the same run, by the best processor time of a call. The peak is that of
multiplications and additions without memory, measured between the turns of the row. Rows in GB/s count arguments and
results once."""


if __name__ == "__main__":
    main()
