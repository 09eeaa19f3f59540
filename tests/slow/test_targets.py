"""Trainers of other machines compute what this machine's do: run under their emulators, where those are installed.

python -m pytest tests/slow/test_targets.py
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from case_sets import folders  # noqa: E402

from minbuild.analysis.attribution import attribute  # noqa: E402
from minbuild.codegen.library_builder import BuiltLibrary, build_checked  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import CompiledModel  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.toolchain import (  # noqa: E402
    build_program,
    find_emulator,
    find_toolchain,
    host_target,
    parse_target,
    run_program,
)
from minbuild.verify.cross_target import Baseline, prove_foreign  # noqa: E402
from minbuild.verify.differential import TRIMMED_GARBAGE, run_script, seeded_script  # noqa: E402
from minbuild.verify.prove import starting_point  # noqa: E402
from minbuild.verify.step_script import step_script  # noqa: E402
from minbuild.verify.steps import measure_steps  # noqa: E402

CASES = ("mlp", "lenet", "bert_tiny")
TARGETS = (
    *("x86_64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-musl", "arm-linux-gnueabihf"),
    *(
        "arm-linux-musleabihf",
        "riscv64-linux-gnu",
        "riscv64-linux-musl",
        "aarch64-linux-android",
        "arm-linux-androideabi",
    ),
    *("wasm32", "wasm32-relaxed-simd", "cortex-m4f", "cortex-m7", "cortex-m55"),
)
BUILT_ONLY = (
    *("x86_64-windows", "aarch64-windows", "aarch64-macos", "x86_64-macos"),
    *("loongarch64-linux-gnu", "loongarch64-linux-musl"),
)
# Bytes: of the file where it is a library, of what is loaded where it is flash.
LIMITS = {
    **dict.fromkeys(
        (f"{arch}-linux-{c}" for arch in ("x86_64", "aarch64", "riscv64") for c in ("gnu", "musl")), 14 << 10
    ),
    **dict.fromkeys(("arm-linux-gnueabihf", "arm-linux-musleabihf", "arm-linux-androideabi"), 12 << 10),
    "cortex-m4f": 12 << 10,
    "cortex-m7": 12 << 10,
    "cortex-m55": 12 << 10,
}


@functools.cache
def model_of(case: str) -> CompiledModel:
    folder = next((f for f in folders() if f.name == case), None)
    if folder is None:
        pytest.skip(f"the artifacts of {case} are not here")
    return compile_model(folder, {}, {}, (), lambda line: None)


@functools.cache
def library_of(case: str, target: str) -> BuiltLibrary:
    model = model_of(case)
    return build_checked(contents_of([model]), model.registry, parse_target(target), find_toolchain())


@functools.cache
def baseline_of(case: str) -> Baseline:
    """What this machine computes."""
    model, host, toolchain = model_of(case), host_target(), find_toolchain()
    start = starting_point(model)
    script = seeded_script(model.program, model.plan, start, model.registry)
    library = library_of(case, str(host))
    results = run_script("here", script, library.built.shared, model.plan_bytes, TRIMMED_GARBAGE)
    trace = measure_steps(step_script(model, start), model, library, host, toolchain)
    return Baseline(model, library, host, toolchain, trace, script, results)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_trains_with_the_same_numbers(case: str, target: str) -> None:
    """Every step within rounding of what this machine computes from the same inputs, the whole run within noise."""
    wanted = parse_target(target)
    if find_emulator(wanted) is None:
        pytest.skip(f"no {wanted.traits.emulator} here")
    found = prove_foreign(baseline_of(case), library_of(case, target), wanted, find_toolchain())
    assert found.proven and found.steps > 10 and (found.step is None or found.step.units < 1)
    assert found.stack is not None and 256 < found.stack.peak < 64 << 10


FILES = b"""
#include <stdio.h>
#include "minbuild/trainer.h"
static int said(const char* what, mb_status status) { return printf("%s %d\\n", what, status); }
int main(void) {
  mb_options options = {0}, again = {0};
  mb_session *session = NULL, *other = NULL;
  said("missing", mb_create_from_files("nowhere", NULL, &options, &session));
  said("create", mb_create_from_files("plan", "checkpoint", &options, &session));
  said("save", mb_save_checkpoint(session, "saved", 1));
  said("again", mb_create_from_files("plan", "saved", &again, &other));
  said("nowhere to save", mb_save_checkpoint(session, "no/folder", 1));
  mb_destroy(session);
  mb_destroy(other);
  return 0;
}
"""


# Programs here are static with musl, where file offsets have 64 bits; glibc's have 32 on 32-bit machines.
OTHER_OFFSETS = ("arm-linux-gnueabihf",)


@pytest.mark.parametrize(
    "target", [t for t in TARGETS if parse_target(t).traits.hosted and t not in OTHER_OFFSETS]
)
def test_files_are_read_and_written(target: str) -> None:
    """Sessions from files and saving ask the operating system, in each architecture's own way."""
    wanted = parse_target(target)
    if find_emulator(wanted) is None:
        pytest.skip(f"no {wanted.traits.emulator} here")
    header = (TESTS.parent / "kernels/include/minbuild/trainer.h").read_bytes()
    sources = {"main.c": FILES, "include/minbuild/trainer.h": header}
    model, built = model_of("mlp"), library_of("mlp", target).built
    program = build_program(sources, built.archive, wanted, find_toolchain())
    given = {"plan": model.plan_bytes, "checkpoint": model.checkpoint}
    ran = run_program(program, target=wanted, files=given)
    assert ran.code == 0, ran.err
    # 8 is MB_IO.
    expected = ["missing 8", "create 0", "save 0", "again 0", "nowhere to save 8"]
    assert ran.out.decode().splitlines() == expected


@pytest.mark.parametrize("target", (*TARGETS, *BUILT_ONLY))
@pytest.mark.parametrize("case", CASES)
def test_every_byte_has_one_owner(case: str, target: str) -> None:
    build = library_of(case, target)
    found = attribute(build.binary, build.owners, build.kernels)
    assert sum(share.bytes for share in found.shares) == len(build.binary.data)
    assert not any("unknown source" in share.owner.name for share in found.shares)


@pytest.mark.parametrize("target", LIMITS)
def test_the_smallest_trainer_stays_small(target: str) -> None:
    library = library_of("mlp", target)
    loaded = sum(s.file_size for s in library.binary.sections if s.allocated)
    size = loaded if target.startswith("cortex") else len(library.built.shared)
    assert size <= LIMITS[target]
