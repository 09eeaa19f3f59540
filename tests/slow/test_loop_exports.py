"""Loops as PyTorch exports them: `scan`, `while_loop`, an RWKV and a Mamba block. They stay loops, with the gradients
of the same steps in double precision, taken one after the other by PyTorch itself.

Needs torch and onnxscript (`pip install '.[torch]'`); takes some minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainers

from minbuild.authoring import Recipe, Source, artifacts_of, read_source
from minbuild.ops import registry
from minbuild.planning.plan_encoding import encode_plan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

REGISTRY = registry()
ROUNDS, BATCH, WIDTH = 24, 2, 6
LARGEST_PLAN = 4096  # bytes, in the smaller encoding, which is the default for such loops
Step = Callable[..., tuple[Any, Any]]


def steps(step: Step, state: Any, xs: Any, exports: bool, reverse: bool = False) -> tuple[Any, Any]:
    """`scan` along the first axis, or the same rounds written out."""
    if exports:
        return scan(step, state, xs, dim=0, reverse=reverse)
    sequence = xs if isinstance(xs, tuple) else (xs,)
    made = []
    for i in range(ROUNDS)[:: -1 if reverse else 1]:
        one = tuple(x[i] for x in sequence)
        state, y = step(state, one if isinstance(xs, tuple) else one[0])
        made.append(y)
    return state, torch.stack(made[:: -1 if reverse else 1])


class Cell(torch.nn.Module):
    """A recurrent cell, from the last slice to the first if `reverse`."""

    exports = True

    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse
        self.into, self.over = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.start = torch.nn.Parameter(torch.randn(BATCH, WIDTH) * 0.3)

    def forward(self, x: Any) -> Any:
        def step(h: Any, now: Any) -> tuple[Any, Any]:
            h = torch.tanh(self.into(now) + self.over(h))
            return h, h * now

        last, ys = steps(step, self.start, x, self.exports, self.reverse)
        return ys.mean(0) + last


class Early(torch.nn.Module):
    """A loop that ends when its state is large enough, after 30 rounds at most."""

    exports = True

    def __init__(self) -> None:
        super().__init__()
        self.over, self.out = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        def goes_on(i: Any, h: Any) -> Any:
            return (i < 30) & (h.abs().sum() < 40.0)

        def body(i: Any, h: Any) -> tuple[Any, Any]:
            return i + 1, h + 0.3 * torch.tanh(self.over(h) + 1)

        state = (torch.tensor(0), x.mean(0))
        if self.exports:
            state = while_loop(goes_on, body, state)
        else:
            while goes_on(*state):
                state = body(*state)
            assert 2 < int(state[0]) < 28
        return self.out(state[1])


class Rwkv(torch.nn.Module):
    """A block of RWKV, version 4: time mixing with its numerically stable recurrence, and channel mixing."""

    exports = True

    def __init__(self) -> None:
        super().__init__()
        layer = lambda: torch.nn.Linear(WIDTH, WIDTH, bias=False)  # noqa: E731
        self.ln1, self.ln2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.key, self.value, self.receptance, self.output = layer(), layer(), layer(), layer()
        self.up, self.down, self.gate = layer(), layer(), layer()
        self.mix_k, self.mix_v, self.mix_r = (torch.nn.Parameter(torch.rand(WIDTH)) for _ in range(3))
        self.mix_up, self.mix_gate = (torch.nn.Parameter(torch.rand(WIDTH)) for _ in range(2))
        self.decay, self.first = (torch.nn.Parameter(torch.randn(WIDTH) * 0.5) for _ in range(2))

    def forward(self, x: Any) -> Any:
        def before(h: Any) -> Any:
            return torch.cat([torch.zeros_like(h[:1]), h[:-1]])

        h = self.ln1(x)
        p = before(h)
        k, v, r = (
            layer(h * mix + p * (1 - mix))
            for layer, mix in (
                (self.key, self.mix_k),
                (self.value, self.mix_v),
                (self.receptance, self.mix_r),
            )
        )
        w, u = -torch.exp(self.decay), self.first

        def step(state: tuple[Any, Any, Any], now: tuple[Any, Any]) -> tuple[Any, Any]:
            (a, b, most), (kt, vt) = state, now
            top = torch.maximum(most, u + kt)
            old, new = torch.exp(most - top), torch.exp(u + kt - top)
            y = (old * a + new * vt) / (old * b + new)
            top = torch.maximum(most + w, kt)
            old, new = torch.exp(most + w - top), torch.exp(kt - top)
            return (old * a + new * vt, old * b + new, top), y

        zero = torch.zeros_like(k[0])
        _, wkv = steps(step, (zero, zero.clone(), zero - 30), (k, v), self.exports)
        x = x + self.output(torch.sigmoid(r) * wkv)
        h = self.ln2(x)
        p = before(h)
        up = torch.relu(self.up(h * self.mix_up + p * (1 - self.mix_up))) ** 2
        x = x + torch.sigmoid(self.gate(h * self.mix_gate + p * (1 - self.mix_gate))) * self.down(up)
        return x.mean(0)


class Mamba(torch.nn.Module):
    """A Mamba block: causal convolution, and a scan whose step, inputs and outputs depend on the data."""

    exports = True

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        inner = 2 * WIDTH
        self.states, self.inner = states, inner
        self.into = torch.nn.Linear(WIDTH, 2 * inner, bias=False)
        self.conv = torch.nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.parts = torch.nn.Linear(inner, 2 + 2 * states, bias=False)
        self.step = torch.nn.Linear(2, inner)
        self.a_log = torch.nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
        self.skip = torch.nn.Parameter(torch.ones(inner))
        self.out = torch.nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        u, gate = self.into(x).chunk(2, dim=-1)
        u = self.conv(u.permute(1, 2, 0))[..., :ROUNDS].permute(2, 0, 1)
        u = torch.nn.functional.silu(u)
        rate, b, c = self.parts(u).split([2, self.states, self.states], dim=-1)
        rate = torch.nn.functional.softplus(self.step(rate))
        a = -torch.exp(self.a_log)

        def step(h: Any, now: tuple[Any, ...]) -> tuple[Any, Any]:
            ut, rt, bt, ct = now
            h = h * torch.exp(rt[..., None] * a) + (rt * ut)[..., None] * bt[:, None, :]
            return h, (h * ct[:, None, :]).sum(-1)

        start = torch.zeros(BATCH, self.inner, self.states, dtype=x.dtype)
        _, y = steps(step, start, (u, rate, b, c), self.exports)
        y = (y + u * self.skip) * torch.nn.functional.silu(gate)
        return (x + self.out(y)).mean(0)


MODULES: dict[str, Callable[[], Any]] = {
    "scan": Cell,
    "scan from the last slice": lambda: Cell(reverse=True),
    "while_loop": Early,
    "rwkv": Rwkv,
    "mamba": Mamba,
}


@pytest.fixture(params=MODULES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Any, Source]:
    """A module, a batch with its target, and the exported model."""
    torch.manual_seed(5)
    module = MODULES[request.param]()
    x, target = torch.randn(ROUNDS, BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (x,), dynamo=True, verbose=False, input_names=["x"]).save(path)
    return module, x, target, read_source(path)


def expected(module: Any, x: Any, target: Any) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients in double precision."""
    module = module.double()
    module.exports = False
    loss = torch.nn.functional.mse_loss(module(x.double()), target.double())
    loss.backward()
    return float(loss), {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def test_exported_loops_train_as_in_double_precision(case: tuple[Any, ...], tmp_path: Path) -> None:
    module, x, target, model = case
    made = artifacts_of(model, Recipe(loss="mse", optimizer="sgd"), REGISTRY)
    assert [n.op_type for n in made.training.nodes].count("Scan") == 2
    loss, gradients = expected(module, x, target)
    feeds = [np.asarray(x), np.asarray(target)]
    trainer = ReferenceTrainer(made)
    trainer.lazy_reset_grad()
    np.testing.assert_allclose(float(np.ravel(trainer.train_step(*feeds)[0])[0]), loss, rtol=1e-6)
    assert set(trainer.trained) == set(gradients)
    plan = trainers.plan_of(made, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    parameters = {p.name: np.asarray(p.data) for p in made.checkpoint.parameters}
    session = trainers.session_of(library, plan, parameters)
    (found,) = session.run(TRAIN, feeds)[:1]
    np.testing.assert_allclose(np.ravel(found), loss, rtol=1e-5)
    for name, gradient in gradients.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(trainer.gradients[name], gradient, rtol=0, atol=1e-6 * scale, err_msg=name)
        np.testing.assert_allclose(session.gradient(name), gradient, rtol=0, atol=2e-5 * scale, err_msg=name)
    tables, streams = (len(encode_plan(plan, {}, dense=form)) for form in (0, 2))
    assert min(tables, streams) <= LARGEST_PLAN
    print(f"plan {tables:,} bytes as tables, {streams:,} as streams")
