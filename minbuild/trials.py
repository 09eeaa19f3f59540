"""What is learned by building a library in other ways: what each step was worth, what each operator costs, advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minbuild.advice import Advisor
from minbuild.emit import everything
from minbuild.libraries import Pair, Workbench
from minbuild.needs import Wishes
from minbuild.planned import Model
from minbuild.removal import removed
from minbuild.size.report import Advice, Bar
from minbuild.waterfall import Builder, waterfall


@dataclass(frozen=True, slots=True)
class Trials:
    """The answers for one target; without any where the builds for them were not wanted."""

    waterfall: tuple[Bar, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)  # kernel file -> bytes
    advice: tuple[Advice, ...] = ()


def try_all(
    bench: Workbench, pair: Pair, models: Sequence[Model], wishes: Wishes, checks_loss: bool
) -> Trials:
    """All of them, for the target of `pair`. Raises ToolchainFailed."""
    contents, registry, toolchain, target = bench.contents, bench.registry, bench.toolchain, pair.target
    bench.stage(f"Measuring what each step is worth for {target} (--fast leaves this out)")
    full = everything(registry, contents.parts)
    bars = waterfall(Builder(contents, full, registry, target, toolchain, bench.detail))
    bench.stage(f"Measuring what each operator costs for {target} (--fast leaves this out)")
    costs = removed(contents, registry, target, toolchain, bench.detail)
    bench.stage(f"Measuring what else could be smaller for {target} (--fast leaves this out)")
    advisor = Advisor(tuple(models), contents, wishes, checks_loss, target, toolchain, bench.detail)
    return Trials(bars, costs, advisor.advice())
