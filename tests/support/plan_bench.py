"""A plan to rewrite: its tables, a session in memory of exactly its size, and the status of what fails first."""

from __future__ import annotations

from typing import Any

import numpy as np
from case_sets import EVAL, GOLDEN, TRAIN, load, trainer

from minbuild.ir.flatbuffers.codec import decode, encode
from minbuild.planning.plan_encoding import EXPRESSIONS, plan_schema
from minbuild.training.library import Session, TrainerError, aligned_copy, arena_size


class Bench:
    """A plan to rewrite, in memory of exactly the size that it asks for."""

    def __init__(self, name: str) -> None:
        self.case, self.built = load(GOLDEN / name), trainer(GOLDEN / name)
        self.tables = decode(plan_schema(), self.built.data)
        self.tables = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in self.tables.items()}
        self.sizes = [len(self.case.batch(0)[0])] * len(self.built.plan.symbols)
        self.values = self._evaluated()

    def _evaluated(self) -> list[int]:
        """All expressions at the sizes of the batch, which are those that the session is made for."""
        values: list[int] = []
        for a, b, op in self.tables["exprs"].tolist():
            name = EXPRESSIONS[op]
            if name in ("Constant", "Symbol"):
                values.append(a if name == "Constant" else self.sizes[a])
                continue
            x, y = values[a], values[b]
            made = {"Add": x + y, "Multiply": x * y, "Max": max(x, y), "Min": min(x, y)}
            made |= {"Stack": x + -(-y // 16) * 16, "Divide": x // y if y else 0}
            values.append(made[name])
        return values

    def bytes_of(self, index: int) -> int:
        tensor = self.tables["tensors"][index]
        sizes = {0: 0, 1: 4, 7: 8, 6: 4, 9: 1}
        at = int(tensor["shape"])
        dims = self.tables["shapes"][at + 1 : at + 1 + self.tables["shapes"][at]]
        return sizes[int(tensor["type"])] * int(np.prod([self.values[d] for d in dims]))

    def used(self, region: int) -> list[int]:
        """Tensors of a region that steps read or write."""
        seen = set(self.tables["args"].tolist())
        tensors = self.tables["tensors"]
        return [i for i in np.flatnonzero(tensors["region"] == region).tolist() if i in seen]

    def constant(self, value: int) -> int:
        return self.expr("Constant", value)

    def expr(self, op: str, a: int, b: int = 0) -> int:
        exprs = self.tables["exprs"]
        self.tables["exprs"] = np.concatenate([exprs, np.array([(a, b, EXPRESSIONS.index(op))], exprs.dtype)])
        return len(exprs)

    def cut(self, vector: str, count: int) -> bytes:
        """The plan with the last elements of a vector still in their place, but no longer counted."""
        data = bytearray(encode(plan_schema(), self.tables))

        def word(at: int) -> int:
            return int.from_bytes(data[at : at + 4], "little")

        root = word(0)
        vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
        slot = vtable + 4 + 2 * list(self.tables).index(vector)
        field = root + int.from_bytes(data[slot : slot + 2], "little")
        at = field + word(field)
        assert word(at) == len(self.tables[vector])
        data[at : at + 4] = (word(at) - count).to_bytes(4, "little")
        return bytes(data)

    def status(self, plan: bytes | None = None) -> int:
        """What the first call that fails answers, of all that a trainer does."""
        try:
            data = plan or encode(plan_schema(), self.tables)
            arena = aligned_copy(b"\xff" * arena_size(self.built.library, data, self.sizes))
            session = Session(self.built.library, data, self.case.checkpoint, self.sizes, arena)
            session.run(TRAIN, self.case.batch(0))
            session.run(EVAL, self.case.eval_batch())
            session.optimizer_step()
        except TrainerError as error:
            return error.status
        return 0


def more_tensors(tables: dict[str, Any]) -> str:
    tables["tensors"] = np.concatenate([tables["tensors"], tables["tensors"][tables["args"][:1]]])
    tables["args"][0] = len(tables["tensors"]) - 1
    return "tensors"


def more_kernels(tables: dict[str, Any]) -> str:
    tables["kernels"] = np.concatenate([tables["kernels"], tables["kernels"][tables["steps"]["kernel"][:1]]])
    tables["steps"]["kernel"][0] = len(tables["kernels"]) - 1
    return "kernels"


def more_steps(tables: dict[str, Any]) -> str:
    first, count = (int(tables["graphs"][member][2]) for member in ("steps", "step_count"))
    tables["graphs"]["steps"][2] = len(tables["steps"])
    tables["steps"] = np.concatenate([tables["steps"], tables["steps"][first : first + count]])
    return "steps"


def more_args(tables: dict[str, Any]) -> str:
    last = tables["steps"]["args"].argmax()
    tail = tables["args"][tables["steps"]["args"][last] :]
    tables["steps"]["args"][last] = len(tables["args"])
    tables["args"] = np.concatenate([tables["args"], tail])
    return "args"


def more_params(tables: dict[str, Any]) -> str:
    last = tables["steps"]["params"].argmax()
    tail = tables["params"][tables["steps"]["params"][last] :]
    tables["steps"]["params"][last] = len(tables["params"])
    tables["params"] = np.concatenate([tables["params"], tail])
    return "params"


def more_shapes(tables: dict[str, Any]) -> str:
    index = tables["args"][0]
    at = int(tables["tensors"]["shape"][index])
    shape = tables["shapes"][at : at + 1 + tables["shapes"][at]]
    tables["tensors"]["shape"][index] = len(tables["shapes"])
    tables["shapes"] = np.concatenate([tables["shapes"], shape])
    return "shapes"


def more_exprs(tables: dict[str, Any]) -> str:
    index = tables["args"][0]
    at = int(tables["tensors"]["at"][index])
    tables["tensors"]["at"][index] = len(tables["exprs"])
    tables["exprs"] = np.concatenate([tables["exprs"], tables["exprs"][at : at + 1]])
    return "exprs"
