"""The smaller of two forms of a package, where there are several targets."""

from __future__ import annotations

from minbuild.codegen.form_comparison import Form, smaller
from minbuild.toolchain import parse_target

TARGETS = tuple(map(parse_target, ("x86_64-linux-gnu", "wasm32")))


def test_all_targets_decide_together() -> None:
    """The first by itself would have the other."""
    compiled, reads = Form("compiled", 0, (900, 1000)), Form("interpreted", 100, (790, 1000))
    chosen, note = smaller("Flavor", (compiled, reads), TARGETS)
    assert chosen is compiled
    assert note == (
        "Flavor compiled saves 90 B on 2 targets together. x86_64-linux-gnu: 10 B more; library 900 B, compiled; "
        "library 790 B and plan 100 B, interpreted. wasm32: library 1,000 B, compiled; library 1,000 B and plan 100 B, "
        "interpreted. By itself x86_64-linux-gnu would have interpreted."
    )


def test_one_target_decides_alone_and_the_first_form_of_equals_is_taken() -> None:
    first, second = Form("plain", 50, (800,)), Form("dense", 30, (820,))
    chosen, note = smaller("Plan encoding", (first, second), TARGETS[:1])
    assert chosen is first
    assert note == (
        "Plan encoding plain saves 0 B on x86_64-linux-gnu: library 800 B and plan 50 B, plain; "
        "library 820 B and plan 30 B, dense."
    )
