"""A session that starts anew, with its state, when an input is larger than its memory was made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minbuild.ir.mapped import FileBytes
from minbuild.passes.lowering.lower import ELSEWHERE
from minbuild.planning.plan_outline import SessionPlan
from minbuild.training.library import TRAIN, Library, Session, TrainerError, ports_of
from minbuild.training.refusals import UNSUPPORTED, refusal

_OUT_OF_MEMORY = 5  # mb_status


class ResizingSession:
    """The calls of `Session`, without a limit on the sizes of free dimensions. Growing carries over parameters,
    optimizer state, learning rate, gradients and the seed; arrays of the old session go on showing what it had.
    `library` runs `plan`; `checkpoint` is a file's bytes, None for a session without parameters yet."""

    def __init__(self, library: Library, plan: SessionPlan, checkpoint: FileBytes | None) -> None:
        self._library, self._plan = library, plan
        self._sizes = list(plan.outline.sizes)
        self.session = Session(library, plan.data, checkpoint)
        self._adds = False  # whether the next train step adds to the gradients
        self._carried = False  # whether what it adds to comes from the session before this one

    def run(self, graph: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One step of a graph; outputs are copies. Raises TrainerError, which says what is wrong with the inputs
        where they are the reason."""
        try:
            return self._step(graph, inputs)
        except TrainerError as error:
            sizes = self._needed(graph, inputs)
            if error.status != _OUT_OF_MEMORY or sizes == self._sizes:
                plan = self._plan.data  # a plan that is compiled in explains nothing
                words = refusal(plan, ports_of(graph), error.status, inputs) if plan else ""
                if words:
                    raise TrainerError(error.status, words) from error
                raise
        self._grow(sizes)
        return self._step(graph, inputs)

    def _step(self, graph: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if graph != TRAIN:
            return self.session.run(graph, inputs)
        # A new session overwrites gradients in its first step whatever is in them.
        carried = self._gradients() if self._carried else {}
        outputs = self.session.run(graph, inputs)
        for name, before in carried.items():
            gradient = self.session.gradient(name)
            assert gradient is not None
            gradient += before
        self._adds, self._carried = True, False
        return outputs

    def _gradients(self) -> dict[str, np.ndarray]:
        found = {name: self.session.gradient(name) for name in self.session.parameters}
        return {name: gradient.copy() for name, gradient in found.items() if gradient is not None}

    def _needed(self, graph: int, inputs: Sequence[np.ndarray]) -> list[int]:
        sizes = list(self._sizes)
        for axes, array in zip(self._plan.outline.inputs[ports_of(graph)], inputs, strict=False):
            for symbol, size in zip(axes, array.shape, strict=False):
                if symbol is not None:
                    sizes[symbol] = max(sizes[symbol], size)
        return sizes

    def _grow(self, sizes: list[int]) -> None:
        try:
            state = self.session.checkpoint(True)
        except TrainerError as error:
            if error.status != UNSUPPORTED:
                raise
            raise TrainerError(
                error.status,
                "a larger batch than before needs a new session, and its state is more than a checkpoint of two "
                "gigabytes takes over. Reduce with --max-dim for the largest batch.",
            ) from error
        self._carry_over(Session(self._library, self._plan.data, state, sizes), sizes)

    def change(self, library: Library, plan: SessionPlan, checkpoint: bytes) -> None:
        """Goes on with another trainer of the same parameters and inputs, in the state of `checkpoint`. `library`
        runs `plan`, both in place of the old ones."""
        self._carry_over(Session(library, plan.data, checkpoint, self._sizes), self._sizes)
        self._library, self._plan = library, plan

    def _carry_over(self, new: Session, sizes: list[int]) -> None:
        """Makes `new` the session. The old one lives on while somebody has arrays of it."""
        new.learning_rate, new.seed = self.session.learning_rate, self.session.seed
        for name, gradient in self._gradients().items():
            target = new.gradient(name)
            assert target is not None
            target[...] = gradient
        self.session, self._sizes, self._carried = new, sizes, self._adds

    @property
    def order(self) -> list[str]:
        """Names of the parameters in the order of the training graph's inputs, as contiguous buffers have them."""
        places = dict(zip(self._plan.outline.order, self.session.parameters, strict=True))
        return [name for place, name in sorted(places.items()) if place != ELSEWHERE]

    @property
    def optimizes(self) -> bool:
        """True if there is an optimizer."""
        return self._plan.outline.optimizes

    @property
    def fused_updates(self) -> bool:
        """True if training steps update parameters."""
        return self._plan.outline.fused_updates

    def lazy_reset_grad(self) -> None:
        """The next train step replaces the gradients."""
        self.session.lazy_reset_grad()
        self._adds = self._carried = False
