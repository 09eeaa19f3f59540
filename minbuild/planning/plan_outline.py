"""The outline of a plan for programs: read from its bytes, or from the manifest of a package whose
library has it compiled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minbuild.ir.mapped import FileBytes
from minbuild.planning.plan_encoding import EXPRESSIONS, FUSED_VERSION, ROUTINES, decode_plan

Axes = tuple[int | None, ...]  # per axis of an input: the free dimension it has, None where it is fixed


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """`sizes` is what a session is made for by default, per free dimension; `inputs` which axes of each graph's inputs
    have which free dimension; `order` the place of each parameter among the training graph's inputs; `optimizes` says
    whether there is an optimizer, `fused_updates` whether training steps update parameters instead."""

    sizes: tuple[int, ...]
    inputs: tuple[tuple[Axes, ...], ...]
    order: tuple[int, ...]
    optimizes: bool
    fused_updates: bool = False

    @staticmethod
    def of(plan: FileBytes) -> PlanOutline:
        """Of a plan's bytes. Raises ValueError where they are none."""
        tables = decode_plan(plan)
        shapes, exprs = tables["shapes"], tables["exprs"]

        def axes(tensor: int) -> Axes:
            at = int(tables["tensors"][tensor]["shape"])
            dims = (exprs[i] for i in shapes[at + 1 : at + 1 + shapes[at]])
            return tuple(int(e["a"]) if e["op"] == EXPRESSIONS.index("Symbol") else None for e in dims)

        graphs = []
        for graph in tables["graphs"]:
            first, count = int(graph["ports"]), int(graph["input_count"])
            ports = tables["ports"][first : first + count]
            graphs.append(tuple(axes(int(port["tensor"])) for port in ports))
        return PlanOutline(
            tuple(tables["defaults"].tolist()),
            tuple(graphs),
            tuple(int(p["order"]) for p in tables["parameters"]),
            int(tables["graphs"][ROUTINES.index("optimize")]["step_count"]) > 0,
            int(tables["version"]) & FUSED_VERSION != 0,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "sizes": list(self.sizes),
            "inputs": [[list(axes) for axes in graph] for graph in self.inputs],
            "order": list(self.order),
            "optimizes": self.optimizes,
            "fused_updates": self.fused_updates,
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> PlanOutline:
        """The inverse of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        return PlanOutline(
            tuple(int(size) for size in plain["sizes"]),
            tuple(
                tuple(tuple(None if a is None else int(a) for a in axes) for axes in graph)
                for graph in plain["inputs"]
            ),
            tuple(int(place) for place in plain["order"]),
            bool(plain["optimizes"]),
            bool(plain.get("fused_updates", False)),  # older packages do not have it
        )


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The plan that a session is made of: the plan's bytes, none where the library has it compiled in."""

    data: FileBytes
    outline: PlanOutline

    @staticmethod
    def of(plan: FileBytes) -> SessionPlan:
        """Of a plan that is read. Raises ValueError for bytes that are no plan."""
        return SessionPlan(plan, PlanOutline.of(plan))
