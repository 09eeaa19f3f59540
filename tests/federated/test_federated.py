"""Updates of federated clients, DP-SGD and its accountant, on a trainer in numpy: least squares, whose gradients are
known in closed form. Flower itself is tested by tests/slow/test_flower.py."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from minbuild.errors import BadInput
from minbuild.federated import Client, LocalTraining, PrivateOptimizer, clipped, epsilon, noised, quantized
from minbuild.federated.privacy import poisson_batches

pytestmark = pytest.mark.unit
FEATURES = 4


class LeastSquares:
    """The methods of Trainer that clients use: mean of (x w - y)^2, by gradient descent."""

    def __init__(self) -> None:
        self.weights = np.zeros(FEATURES, np.float32)
        self.gradient = np.full(FEATURES, np.nan, np.float32)  # whatever is there before a step
        self.learning_rate = 0.1
        self.steps = 0

    def accumulate(self, x: np.ndarray, y: np.ndarray, *, reset: bool = False) -> float:
        errors = x @ self.weights - y
        found = 2 * x.T @ errors / len(x)
        self.gradient[:] = found if reset else self.gradient + found
        return float(np.mean(errors**2))

    def update(self) -> None:
        self.weights -= (self.learning_rate * self.gradient).astype(np.float32)
        self.steps += 1

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        loss = self.accumulate(x, y, reset=True)
        self.update()
        return loss

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray]:
        return (np.float32(np.mean((x @ self.weights - y) ** 2)),)

    def gradients(self) -> list[np.ndarray]:
        return [self.gradient[:1], self.gradient[1:]]

    def flat(self) -> np.ndarray:
        return self.weights.copy()

    def set_flat(self, values: np.ndarray) -> None:
        self.weights[:] = values

    def to_bytes(self) -> bytes:
        return bytes([self.steps])

    def load_bytes(self, data: bytes) -> None:
        self.steps = data[0]


def data(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    x = random.standard_normal((count, FEATURES)).astype(np.float32)
    return x, (x @ np.arange(1, FEATURES + 1) + 0.1 * random.standard_normal(count)).astype(np.float32)


def client(count: int = 12, seed: int | None = 0) -> Client:
    return Client(LeastSquares, data(count), seed)  # type: ignore[arg-type]


def private(noise: float, norm: float, **more: Any) -> tuple[LeastSquares, PrivateOptimizer]:
    trainer = LeastSquares()
    random = np.random.default_rng(5)
    return trainer, PrivateOptimizer(trainer, noise, norm, more.pop("expected", 12), random)  # type: ignore[arg-type]


def per_sample_mean(x: np.ndarray, y: np.ndarray, norm: float) -> np.ndarray:
    """The mean of clipped gradients at weights of zero."""
    each = -2 * x * y[:, None]
    return (each * np.minimum(1, norm / np.linalg.norm(each, axis=1))[:, None]).mean(0)


@pytest.mark.parametrize("norm", [0.5, 3, 1e6])
def test_gradients_are_clipped_per_sample(norm: float) -> None:
    trainer, optimizer = private(0, norm)
    loss = optimizer.step(*data())
    np.testing.assert_allclose(trainer.gradient, per_sample_mean(*data(), norm), rtol=1e-5)
    assert loss == pytest.approx(np.mean(data()[1] ** 2)) and trainer.steps == 1


def test_noise_has_the_deviation_of_the_mechanism() -> None:
    found = []
    for seed in range(400):
        trainer = LeastSquares()
        PrivateOptimizer(trainer, 1.5, 2, 12, np.random.default_rng(seed)).step(*data())  # type: ignore[arg-type]
        found.append(trainer.gradient - per_sample_mean(*data(), 2))
    # 1,600 numbers: their deviation is within 3 / sqrt(2 * 1600), and their mean within 4 / sqrt(1600), of that.
    wanted = 1.5 * 2 / 12
    assert np.std(found) == pytest.approx(wanted, rel=0.054) and abs(np.mean(found)) < 0.1 * wanted


def test_a_batch_of_no_samples_is_noise_alone() -> None:
    trainer, optimizer = private(1, 1)
    x, y = data()
    assert np.isnan(optimizer.step(x[:0], y[:0])) and trainer.steps == 1
    assert np.isfinite(trainer.gradient).all() and np.any(trainer.gradient)


def test_batches_are_of_the_rate() -> None:
    sizes = [len(b) for b in poisson_batches(1000, 0.05, 200, np.random.default_rng(0))]
    assert len(sizes) == 200 and np.mean(sizes) == pytest.approx(50, abs=4 * 6.9 / 14) and np.std(sizes) > 4


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "opacus"),
    [
        (1.1, 0.01, 1000, 1e-5, 1.7117700912203435),
        (0.8, 0.02, 500, 1e-5, 5.370137866453623),
        (2.0, 0.1, 200, 1e-6, 4.117558239799327),
        (1.0, 1.0, 10, 1e-5, 19.05359753163139),
        (4.0, 0.05, 2000, 1e-5, 2.523496275226126),
        (0.5, 0.005, 100, 1e-4, 4.709650496213992),
    ],
)
def test_epsilon_is_that_of_opacus(
    noise: float, rate: float, steps: int, delta: float, opacus: float
) -> None:
    """Numbers of opacus.accountants.RDPAccountant 1.6, which has fractional orders too: ours are whole, and so an upper
    bound."""
    found = epsilon(noise, rate, steps, delta)
    assert opacus * (1 - 1e-9) <= found <= 1.04 * opacus


def test_epsilon_at_its_ends() -> None:
    assert epsilon(0, 0.1, 1, 1e-5) == float("inf")
    assert epsilon(1, 0, 10, 1e-5) == epsilon(1, 0.1, 0, 1e-5) == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: epsilon(1, 2, 1, 1e-5), "rate 2"),
        (lambda: epsilon(1, 0.1, 1, 1), "delta 1"),
        (lambda: private(-1, 1), "noise_multiplier -1"),
        (lambda: private(1, 0), "max_norm 0"),
        (lambda: private(1, 1, expected=0), "expected_batch 0"),
        (lambda: private(1, 1)[1].step(np.zeros((2, 4)), np.zeros(3)), "2, 3 samples"),
        (lambda: clipped(np.array([np.inf]), 1), "not finite"),
        (lambda: clipped(np.zeros(2), 0), "clipping norm 0"),
        (lambda: noised(np.zeros(2), -1, np.random.default_rng()), "deviation -1"),
        (lambda: quantized(np.zeros(2), np.random.default_rng(), 0), "block 0"),
        (lambda: quantized(np.array([np.nan]), np.random.default_rng()), "not finite"),
        (lambda: LocalTraining(noise=1), "noise without clip"),
        (lambda: LocalTraining(batch=0), "batch 0"),
        (lambda: Client(LeastSquares, [np.zeros(2), np.zeros(3)]), "different numbers"),  # type: ignore[arg-type]
        (lambda: client().train(np.zeros(4), LocalTraining(batch=13, drop_last=True)), "fill no batch of 13"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        call()


def test_updates_are_differences_since_the_round_began() -> None:
    start = np.array([1, 0, 0, 2], np.float32)
    update, loss = client().train(start, LocalTraining(epochs=3, batch=4, learning_rate=0.05))
    trainer = LeastSquares()
    trainer.set_flat(start)
    trainer.learning_rate = 0.05
    order, losses = np.random.default_rng(0), []
    x, y = data()
    for _ in range(3):
        epoch = order.permutation(12)
        losses += [trainer.step(x[epoch[i : i + 4]], y[epoch[i : i + 4]]) for i in (0, 4, 8)]
    np.testing.assert_array_equal(update, trainer.weights - start)
    assert loss == pytest.approx(np.mean(losses)) and client().evaluate(
        start + update, 5
    ) < client().evaluate(start)


def test_updates_are_clipped_and_noised() -> None:
    plain, _ = client().train(np.zeros(4, np.float32), LocalTraining())
    short, _ = client().train(np.zeros(4, np.float32), LocalTraining(clip=0.25))
    np.testing.assert_allclose(np.linalg.norm(short), 0.25, rtol=1e-6)
    np.testing.assert_allclose(short / 0.25, plain / np.linalg.norm(plain), rtol=1e-5)
    noisy, _ = client().train(np.zeros(4, np.float32), LocalTraining(clip=0.25, noise=0.1))
    assert 0 < np.abs(noisy - short).max() < 0.1 * 6


def test_training_that_diverges_is_refused() -> None:
    with np.errstate(all="ignore"), pytest.raises(BadInput, match="diverged"):
        client().train(np.zeros(4, np.float32), LocalTraining(epochs=200, learning_rate=100.0))


def test_optimizer_state_stays_where_asked_for() -> None:
    one = client()
    one.train(np.zeros(4, np.float32), LocalTraining(batch=4))
    assert one.checkpoint is None
    for rounds in (1, 2):
        one.train(np.zeros(4, np.float32), LocalTraining(batch=4, optimizer_state=True))
        assert one.checkpoint == bytes([3 * rounds])


def test_quantised_updates_are_right_on_average() -> None:
    update = np.random.default_rng(3).standard_normal(700).astype(np.float32)
    update[300:] = 0
    random, runs = np.random.default_rng(4), 300
    total = np.zeros(700)
    for _ in range(runs):
        made = quantized(update, random, block=256)
        assert made.values.dtype == np.int8 and made.scale.size == 3 and made.nbytes == 700 + 12
        each = made.restored()
        step = np.repeat(made.scale, 256)[:700]
        assert (np.abs(each - update) <= step * (1 + 1e-5)).all() and not each[600:].any()
        total += each
    step = float(made.scale.max())
    # A number is off by at most half a step in deviation; the mean of 300, over 300 numbers, by five times 1/sqrt(300).
    np.testing.assert_allclose(total[:300] / runs, update[:300], atol=5 * 0.5 * step / np.sqrt(runs))


def test_flower_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "minbuild.federated.flower", raising=False)
    with pytest.raises(BadInput, match=r"needs flwr 1\.26 or newer.*pip install 'flwr>=1\.26'"):
        import minbuild.federated.flower  # noqa: F401
