"""The client and the strategy for Flower. The only module that imports flwr.

from minbuild.federated.flower import DeltaFedAvg, client_app
app = client_app(lambda partition: Client(lambda: Trainer("dist"), data_of(partition)), LocalTraining(epochs=2))

Parameters travel to clients as one flat array, and updates back: as float32, or as int8 with scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.federated.client import Client, LocalTraining
from minbuild.federated.updates import QuantizedUpdate, quantized

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
except ImportError as missing:
    raise BadInput(
        f"minbuild.federated.flower needs flwr 1.26 or newer ({missing}). Run pip install 'flwr>=1.26'."
    ) from None

_PARAMETERS, _UPDATE, _VALUES, _SCALE, _BLOCK = "parameters", "update", "values", "scale", "block"
_ARRAYS, _METRICS, _CONFIG, _SAMPLES = "arrays", "metrics", "config", "num-examples"
_STATE, _CHECKPOINT = "minbuild", "checkpoint"


def record_of(parameters: np.ndarray) -> ArrayRecord:
    """The arrays that a ServerApp begins with: `Client.parameters`, or a trained model's `Trainer.flat`."""
    return ArrayRecord({_PARAMETERS: Array(np.ascontiguousarray(parameters, np.float32))})


def parameters_in(record: ArrayRecord) -> np.ndarray:
    """The flat parameters in arrays of a server, such as the result of a strategy, for `Trainer.set_flat`."""
    return np.asarray(record[_PARAMETERS].numpy(), np.float32)


def client_app(
    make_client: Callable[[int], Client],
    how: LocalTraining,
    *,
    int8: bool = False,
    evaluation_batch: int = 64,
) -> ClientApp:
    """The ClientApp around trainers: `make_client` gives the client of a partition number, `how` is its training.
    With `int8` updates are quantised. A number that the server's configuration has under `learning-rate` replaces
    that of `how`. `evaluation_batch` counts the samples of a step of evaluation."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        client = make_client(_partition(context))
        if how.optimizer_state and _STATE in context.state:
            client.checkpoint = context.state[_STATE][_CHECKPOINT].numpy().tobytes()
        update, loss = client.train(parameters_in(message.content[_ARRAYS]), _told(how, message))
        if client.checkpoint is not None:
            state = Array(np.frombuffer(client.checkpoint, np.uint8))
            context.state[_STATE] = ArrayRecord({_CHECKPOINT: state})
        content = {
            _ARRAYS: _sent(update, client, int8),
            _METRICS: MetricRecord({_SAMPLES: client.samples, "train-loss": loss}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
    def evaluate(message: Message, context: Context) -> Message:
        client = make_client(_partition(context))
        loss = client.evaluate(parameters_in(message.content[_ARRAYS]), evaluation_batch)
        metrics = MetricRecord({_SAMPLES: client.samples, "loss": loss})
        return Message(content=RecordDict({_METRICS: metrics}), reply_to=message)

    return app


class DeltaFedAvg(FedAvg):
    """Federated averaging of updates: parameters of the next round are those of this one and `server_rate` times the
    mean of the updates. Means are weighted by numbers of samples, or with `uniform` not: noise for differential
    privacy is calculated for a mean without weights."""

    def __init__(self, *, server_rate: float = 1.0, uniform: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._server_rate, self._uniform = server_rate, uniform
        self._parameters: np.ndarray | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg; the parameters are kept, which updates are added to. `server_round` counts from 1, `arrays` are
        the parameters of the round, `config` and `grid` are passed on."""
        self._parameters = parameters_in(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next parameters, and the mean of the metrics. An update of another size is refused."""
        assert self._parameters is not None, "Flower configures a round before it aggregates it"
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        total, weights = np.zeros(self._parameters.size), 0.0
        for reply in valid:  # one after the other: two thousand of them need not fit into memory as float64
            update = _received(reply.content[self.arrayrecord_key])
            if update.shape != self._parameters.shape:
                raise BadInput(
                    f"node {reply.metadata.src_node_id} sent {update.size} numbers, the model has "
                    f"{self._parameters.size}: it trains another package."
                )
            weight = 1.0 if self._uniform else float(reply.content[_METRICS][self.weighted_by_key])
            total += weight * update
            weights += weight
        parameters = (self._parameters + self._server_rate * total / weights).astype(np.float32)
        metrics = self.train_metrics_aggr_fn([reply.content for reply in valid], self.weighted_by_key)
        return record_of(parameters), metrics


def _partition(context: Context) -> int:
    """The number of a client: of the simulation, or of the node's configuration."""
    found = context.node_config.get("partition-id")
    if found is None:
        raise BadInput("this node has no partition-id. Start it with --node-config 'partition-id=0'.")
    return int(found)


def _told(how: LocalTraining, message: Message) -> LocalTraining:
    config: Any = message.content.get(_CONFIG, {})
    return how.with_rate(float(config["learning-rate"])) if "learning-rate" in config else how


def _sent(update: np.ndarray, client: Client, int8: bool) -> ArrayRecord:
    if not int8:
        return ArrayRecord({_UPDATE: Array(update)})
    made = quantized(update, client.random)
    block = np.array([made.block], np.int32)
    return ArrayRecord({_VALUES: Array(made.values), _SCALE: Array(made.scale), _BLOCK: Array(block)})


def _received(record: ArrayRecord) -> np.ndarray:
    if _UPDATE in record:
        return np.asarray(record[_UPDATE].numpy())
    values, scale, block = (record[key].numpy() for key in (_VALUES, _SCALE, _BLOCK))
    return QuantizedUpdate(values, scale, int(block[0])).restored()
