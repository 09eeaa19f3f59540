"""Flower with trainers of minbuild: clients of its simulation, updates as float32 and int8, and DP-SGD beside Opacus.
In an environment of its own, with `pip install ".[flower,torch,test]" opacus`:

    pytest tests/slow/test_flower.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict  # noqa: E402

from minbuild.errors import BadInput  # noqa: E402
from minbuild.federated import Client, LocalTraining, PrivateOptimizer, epsilon  # noqa: E402
from minbuild.federated.flower import DeltaFedAvg, client_app, parameters_in, record_of  # noqa: E402
from minbuild.training.trainer import Trainer  # noqa: E402

SAMPLES, FEATURES, CLASSES = 24, 8, 3


def model() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 6), torch.nn.Tanh(), torch.nn.Linear(6, CLASSES)
    ).eval()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import minbuild.torch

    torch = pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("flower") / "dist"
    sgd = torch.optim.SGD(model().parameters(), lr=0.1)
    minbuild.torch.reduce(model(), torch.zeros(2, FEATURES), optimizer=sgd, out=out)
    return out


def samples(partition: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(partition)
    return random.standard_normal((SAMPLES, FEATURES)).astype(np.float32), random.integers(
        0, CLASSES, SAMPLES
    )


def client(package: Path, partition: int) -> Client:
    return Client(lambda: Trainer(package), samples(partition), seed=partition)


def message(parameters: np.ndarray) -> Message:
    """What a server sends in a round."""
    content = RecordDict({"arrays": record_of(parameters), "config": ConfigRecord()})
    about = Metadata(
        run_id=1, message_id="1", src_node_id=0, dst_node_id=1, reply_to_message_id="", group_id="",
        created_at=time.time(), ttl=60.0, message_type="train",
    )  # fmt: skip
    return Message(metadata=about, content=content)


@pytest.mark.parametrize("int8", [False, True])
def test_a_round_of_flower_is_the_mean_of_the_updates(package: Path, int8: bool) -> None:
    how = LocalTraining(batch=8, learning_rate=0.05)
    app = client_app(lambda partition: client(package, partition), how, int8=int8)
    start = client(package, 0).parameters()
    strategy = DeltaFedAvg(fraction_evaluate=0.0)
    strategy._parameters = start
    replies = []
    for partition in range(4):
        context = Context(1, partition, {"partition-id": partition}, RecordDict(), {})
        replies.append(app(message(start), context))
    arrays, metrics = strategy.aggregate_train(1, replies)
    wanted = np.mean([client(package, p).train(start, how)[0] for p in range(4)], axis=0)
    assert arrays is not None and metrics is not None
    update = parameters_in(arrays) - start
    # int8: a step of 1/127 of the largest number, averaged over four clients.
    tolerance = np.abs(wanted).max() / 40 if int8 else 1e-6
    np.testing.assert_allclose(update, wanted, atol=tolerance)
    assert 0 < metrics["train-loss"] < 5


def test_flower_simulates_clients(package: Path) -> None:
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    how = LocalTraining(epochs=2, batch=8, learning_rate=0.1)
    path = package  # closed over: workers import nothing of this file
    app = client_app(lambda partition: client(path, partition), how, int8=True)
    start, results = client(package, 0).parameters(), []
    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Context) -> None:
        results.append(
            DeltaFedAvg(uniform=True).start(grid=grid, initial_arrays=record_of(start), num_rounds=3)
        )

    run_simulation(server, app, num_supernodes=6, backend_config={"client_resources": {"num_cpus": 1}})
    losses = [metrics["loss"] for metrics in results[0].evaluate_metrics_clientapp.values()]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert not np.array_equal(parameters_in(results[0].arrays), start)


def test_updates_of_another_package_are_refused(package: Path) -> None:
    strategy = DeltaFedAvg()
    strategy._parameters = np.zeros(3, np.float32)
    how = LocalTraining()
    app = client_app(lambda partition: client(package, partition), how)
    context = Context(1, 0, {"partition-id": 0}, RecordDict(), {})
    reply = app(message(client(package, 0).parameters()), context)
    with pytest.raises(BadInput, match="trains another package"):
        strategy.aggregate_train(1, [reply])


def test_gradients_and_epsilon_are_those_of_opacus(package: Path) -> None:
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    module, norm, expected = opacus.GradSampleModule(model().train()), 0.3, 8
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    theirs = opacus.optimizers.DPOptimizer(
        sgd, noise_multiplier=0.0, max_grad_norm=norm, expected_batch_size=expected
    )
    trainer = Trainer(package, learning_rate=0.1)
    ours = PrivateOptimizer(trainer, noise_multiplier=0.0, max_norm=norm, expected_batch=expected)
    x, y = samples(0)
    for first in range(0, SAMPLES, expected):
        chosen = slice(first, first + expected)
        theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x[chosen])), torch.tensor(y[chosen]))
        loss.backward()
        theirs.step()
        assert ours.step(x[chosen], y[chosen]) == pytest.approx(loss.item(), rel=1e-5)
    wanted = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    np.testing.assert_allclose(trainer.flat(), wanted, rtol=1e-5, atol=1e-6)
    accountant = opacus.accountants.RDPAccountant()
    accountant.history = [(1.1, 0.01, 1000)]
    found = accountant.get_epsilon(1e-5)
    assert found * (1 - 1e-9) <= epsilon(1.1, 0.01, 1000, 1e-5) <= 1.04 * found
