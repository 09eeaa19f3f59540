"""Flower's simulation with clients of minbuild or of PyTorch: clients a second, and memory of a worker.

    python tests/slow/simulate_flower.py minbuild|torch [--clients 2000] [--rounds 1] [--package dist]

In an environment with `pip install ".[flower,torch,examples]" "flwr[simulation]"`. Every client has 16 of the digits of
scikit-learn and trains two
epochs of batches of 8 of a perceptron with 64 hidden units by SGD, in one round or more; both kinds begin with the same
parameters, and the loss after the last round is printed. Two workers of one processor each.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import numpy as np  # noqa: E402
from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from minbuild.federated import Client, LocalTraining  # noqa: E402
from minbuild.federated.flower import DeltaFedAvg, client_app, parameters_in, record_of  # noqa: E402
from minbuild.training.trainer import Trainer  # noqa: E402

SAMPLES, EPOCHS, BATCH, RATE = 16, 2, 8, 0.1
DIGITS = load_digits()
IMAGES, LABELS = (DIGITS.data / 16).astype(np.float32), DIGITS.target.astype(np.int64)


def samples(partition: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(partition).choice(len(LABELS), SAMPLES, replace=False)
    return IMAGES[chosen], LABELS[chosen]


def module() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


class TorchClient(Client):
    """The same client with PyTorch in place of a trainer."""

    def train(self, parameters: np.ndarray, how: LocalTraining) -> tuple[np.ndarray, float]:
        import torch

        torch.set_num_threads(1)
        network = module()
        torch.nn.utils.vector_to_parameters(torch.tensor(parameters), network.parameters())
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        losses = []
        for chosen in self._batches(how):
            optimizer.zero_grad()
            x, y = (torch.from_numpy(each[chosen]) for each in self._data)
            loss = torch.nn.functional.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        after = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
        return after - parameters, float(np.mean(losses))


def with_memory(app: ClientApp) -> ClientApp:
    """The app with the largest memory of its worker, in megabytes, among its metrics."""
    outer = ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        reply = app(message, context)
        reply.content["metrics"]["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return reply

    return outer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("minbuild", "torch"))
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--package", type=Path, default=Path("flower-dist"))
    asked = parser.parse_args()
    package = asked.package.resolve()
    if not package.exists():
        import torch

        import minbuild.torch

        sgd = torch.optim.SGD(module().parameters(), lr=RATE)
        minbuild.torch.reduce(
            module().eval(), torch.zeros(2, 64), optimizer=sgd, out=package, max_dims={"batch": BATCH}
        )
    kind = {"minbuild": Client, "torch": TorchClient}[asked.kind]
    how = LocalTraining(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
    app = with_memory(client_app(lambda n: kind(lambda: Trainer(package), samples(n), seed=n), how))
    start, results = Trainer(package).flat(), []
    server = ServerApp()

    @server.main()
    def run(grid: Any, context: Context) -> None:
        while len(list(grid.get_node_ids())) < asked.clients:  # workers are started before the clock
            time.sleep(0.1)
        began = time.monotonic()
        strategy = DeltaFedAvg(
            fraction_evaluate=0.0, min_train_nodes=asked.clients, min_available_nodes=asked.clients
        )
        found = strategy.start(
            grid=grid, initial_arrays=record_of(start), num_rounds=asked.rounds, timeout=36000
        )
        results.append((found, time.monotonic() - began))

    run_simulation(
        server,
        app,
        num_supernodes=asked.clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    found, seconds = results[0]
    metrics = found.train_metrics_clientapp[asked.rounds]
    judge = Client(lambda: Trainer(package), (IMAGES, LABELS))
    before, after = judge.evaluate(start), judge.evaluate(parameters_in(found.arrays))
    print(
        f"{asked.kind}: {asked.clients} clients, {asked.rounds} round(s) in {seconds:.0f} s: "
        f"{asked.clients * asked.rounds / seconds:.1f} clients a second; {metrics['megabytes']:.0f} MB a worker; "
        f"loss on all digits {before:.4f} before, {after:.4f} after"
    )


if __name__ == "__main__":
    main()
