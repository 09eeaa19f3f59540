"""Options that the plan of a model depends on."""

from __future__ import annotations

from dataclasses import dataclass

from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.options.build_options import OFF
from minbuild.options.graph_selection import EVERY


@dataclass(frozen=True, slots=True)
class Updates:
    """The place of parameter updates: `fused` into the training step, in which gradients are `checked` to be finite, or
    in steps of their own."""

    fused: bool = False
    checked: bool = True


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan; the defaults are those of a build without options."""

    graphs: tuple[str, ...] = EVERY  # of GRAPHS: what it is planned for
    threads: str = OFF  # a value of --threads
    kernels: KernelChoice = EVERY_KERNEL  # that it chooses from
    packs_all: bool = False  # whatever gains at the largest sizes, not those kernels alone that gain most
    kernel_names: bool = True  # the plan has them, for errors in words
    checks_loss: bool = False  # training steps refuse a loss that is not finite
    updates: Updates = Updates()  # where parameters are updated
    native_halves: bool = False  # products of halves by the processor's own arithmetic
    ram: int | None = None  # budget in bytes for the arena and what persists
    ram_curve: bool = False  # estimate the time of training steps for other budgets, too
