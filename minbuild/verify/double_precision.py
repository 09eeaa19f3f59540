"""A whole run in double precision: the interpreter performs a test script beside the trainer. How far a trainer
is from it is rounding, which is one measure of what another machine may be off by."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from minbuild.errors import MinbuildError
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir.dims import evaluate
from minbuild.options.graph_selection import select_graphs
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.verify.script import Action, Results, TestScript, separated

# The interpreter holds every value of a graph, in 8 bytes, and computes about 10^7 elements a second.
MOST_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True)
class DoubleRun:
    """The results of the interpreter, or the reason why there are none."""

    results: Results | None
    reason: str = ""


def in_double_precision(model: CompiledModel, script: TestScript, like: Results) -> DoubleRun:
    """The results of the actions of `script` on the graphs of `model` in double precision, under the names that they
    have in `like`; checkpoints are left out."""
    elements = largest_graph(model, script)
    if elements > MOST_ELEMENTS:
        return DoubleRun(
            None, f"a graph has {elements:,} elements, and the interpreter takes {MOST_ELEMENTS:,}"
        )
    try:
        found = _perform(model, script, like)
    except MinbuildError as error:
        return DoubleRun(None, str(error).rstrip("."))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Numbers that only the device has, such as a division of integers by zero: the trainer was proven without.
        return DoubleRun(None, f"the interpreter cannot perform it ({type(error).__name__})")
    if not all(np.isfinite(x).all() for x in found.values() if x.dtype.kind == "f"):
        return DoubleRun(None, "it computes NaN or infinite values there")
    return DoubleRun(found)


def largest_graph(model: CompiledModel, script: TestScript) -> int:
    """Elements of all values of the largest graph, as lowered, at the sizes of a script."""
    sizes = dict(zip(model.plan.symbols, script.sizes, strict=True))
    return max(
        sum(prod(evaluate(d, sizes) for d in value.type.shape or ()) for value in procedure.values.values())
        for procedure in model.program.procedures
    )


def _perform(model: CompiledModel, script: TestScript, like: Results) -> dict[str, np.ndarray]:
    trainer = ReferenceTrainer(select_graphs(model.artifacts, model.options.graphs), model.registry)
    found: dict[str, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for action in separated(script).actions:
            outputs = _act(trainer, action, script)
            names = [name for name in like if action.label and name.split("/")[0] == action.label]
            if action.verb in ("train", "eval"):
                found |= dict(zip(names, outputs, strict=bool(names)))
            elif action.verb in ("gradients", "parameters"):
                held = trainer.gradients if action.verb == "gradients" else trainer.parameters
                found |= {name: held[name.removeprefix(f"{action.label}/")].copy() for name in names}
    return {name: np.asarray(array).reshape(like[name].shape) for name, array in found.items()}


def _act(trainer: ReferenceTrainer, action: Action, script: TestScript) -> list[np.ndarray]:
    """Performs an action; outputs of a graph that was run."""
    if action.verb == "create":
        trainer.load(read_checkpoint(script.checkpoints[action.operand]))
        trainer.draws = {}
    elif action.verb == "rate":
        trainer.learning_rate = float(np.float32(action.operand))
    elif action.verb == "train":
        return trainer.train_step(*script.batches[action.operand])
    elif action.verb == "eval":
        return trainer.eval_step(*script.batches[action.operand])
    elif action.verb == "optimizer":
        trainer.optimizer_step()
    elif action.verb == "initialize":
        trainer.initialize()
    elif action.verb == "reset":
        trainer.lazy_reset_grad()
    elif action.verb == "copy":
        trainer.gradients = {n: trainer.parameters[n].copy() for n in trainer.gradients}
    return []
