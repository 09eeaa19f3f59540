"""Random models compute on other machines what they do on this one: models that nobody wrote, step by step and as a
whole."""

from __future__ import annotations

import functools

import pytest
import random_loops
import random_nets
from baselines import baseline
from planned_models import compiled

from minbuild.codegen.library_builder import BuiltLibrary, build_checked
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_emulator, find_toolchain, host_target, parse_target, why_not_run
from minbuild.verify.cross_target import Baseline, prove_foreign

pytestmark = pytest.mark.targets

EMULATED = ("arm-linux-musleabihf", "wasm32", "cortex-m4f", "aarch64-linux-musl")
# Of the loops, 3 and 13 compare maxima with what they are taken from, and numbers of 31 are flushed to zero.
LOOPS, NETS = (0, 3, 13, 31), range(4)


@functools.cache
def models() -> dict[str, CompiledModel]:
    made = {}
    for seed in LOOPS:
        loops, rounds = random_loops.random_loops(seed)
        free = {} if rounds else {"T": random_loops.LONGEST}
        made[f"loops {seed}"] = compiled(loops, random_loops.REGISTRY, **free)
    for seed in NETS:
        net, _ = random_nets.random_net(seed)
        made[f"net {seed}"] = compiled(net, random_nets.REGISTRY, N=random_nets.LARGEST)
    return made


@functools.cache
def library_of(target: str) -> BuiltLibrary:
    contents = contents_of(list(models().values()))
    return build_checked(contents, random_loops.REGISTRY, parse_target(target), find_toolchain())


@functools.cache
def here(name: str) -> Baseline:
    return baseline(models()[name], library_of(str(host_target())))


@pytest.mark.xdist_group("random")
@pytest.mark.parametrize("target", EMULATED)
def test_random_models_compute_the_same(target: str) -> None:
    wanted = parse_target(target)
    assert find_emulator(wanted) is not None, why_not_run(wanted)
    for name in models():
        found = prove_foreign(here(name), library_of(target), wanted, find_toolchain())
        assert found.proven and (found.step is None or found.step.units < 1), name
