"""The checker of arena layouts: every rule broken on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from arena_buffers import (
    BATCH,
    accesses_of,
    buffers_of,
    lifespans,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from minbuild.ir import Buffer
from minbuild.planning.arena.layout import aligned, buffer_sizes, solution_of
from minbuild.planning.arena.validator import LayoutFault, Loops, validate

pytestmark = pytest.mark.unit

# a and b meet at step 2, c takes a's place afterwards.
SOUND = (Buffer("a", 0, 2, 40 * BATCH), Buffer("b", 2, 4, 100), Buffer("c", 3, 4, 16))
USES = (("a",), ("a",), ("a", "b"), ("c", "b"), ("c", "b"))


def broken_rules(
    buffers: Sequence[Buffer] = SOUND,
    offsets: Sequence[int] | None = None,
    peak: int | None = None,
    uses: Sequence[Sequence[str]] = USES,
) -> tuple[set[str], str]:
    """The rules the checker names for a variation of the sound layout, and its text."""
    if offsets is None:
        offsets = [0, 160, 272][: len(buffers)]
    try:
        validate("train", buffers, offsets, 288 if peak is None else peak, {"batch": 4}, uses)
    except LayoutFault as fault:
        return {finding.rule for finding in fault.findings}, str(fault)
    return set(), ""


def test_sound_layout_passes() -> None:
    assert broken_rules() == (set(), "")


Mutation = Callable[[], tuple[set[str], str]]


@pytest.mark.parametrize(
    ("mutation", "rules", "said"),
    [
        (lambda: broken_rules(offsets=[0, 144, 272]), {"offset", "overlap"}, "'b' is alive from step 2 to 4"),
        (lambda: broken_rules(offsets=[0, 160, 176]), {"offset", "overlap"}, "at step 3"),
        (lambda: broken_rules(offsets=[0, 160, 271]), {"offset", "alignment", "overlap"}, "16-byte"),
        (lambda: broken_rules(offsets=[0, 160, 288], peak=304), {"offset"}, "device puts it at 272"),
        (lambda: broken_rules(offsets=[-16, 160, 272]), {"offset", "extent"}, "[-16, 144)"),
        (lambda: broken_rules(offsets=[0, 160]), {"offset"}, "2 offsets for 3 buffers"),
        (lambda: broken_rules(peak=287), {"extent"}, "'c' takes bytes [272, 288) of an arena of 287"),
        (lambda: broken_rules(uses=(*USES[:3], ("a", "b"), ("c",))), {"access"}, "step 3 uses buffer 'a'"),
        (lambda: broken_rules(uses=(("a", "b"), *USES[1:])), {"access"}, "step 0 uses buffer 'b'"),
        (lambda: broken_rules(uses=(("ghost",), *USES[1:])), {"access"}, "'ghost', which has no place"),
        (lambda: broken_rules(uses=USES[:4]), {"lifespan"}, "steps are 0 to 3"),
        (lambda: broken_rules((replace(SOUND[0], first=-1), *SOUND[1:])), {"lifespan"}, "'a' is alive"),
        (lambda: broken_rules((replace(SOUND[0], last=-1), *SOUND[1:])), {"lifespan"}, "from step 0 to -1"),
        (lambda: broken_rules((replace(SOUND[0], bytes=-BATCH), *SOUND[1:])), {"size"}, "has -4 bytes"),
        (lambda: broken_rules((replace(SOUND[0], name="c"), *SOUND[1:])), {"name"}, "0 and 2 are both"),
        # Larger or longer-lived than when it was planned.
        (
            lambda: broken_rules((replace(SOUND[0], bytes=161), *SOUND[1:])),
            {"offset", "overlap"},
            "[160, 176)",
        ),
        (lambda: broken_rules((*SOUND[:2], replace(SOUND[2], bytes=17))), {"extent"}, "an arena of 288"),
        (lambda: broken_rules((SOUND[1], SOUND[0], SOUND[2]), [160, 0, 272]), {"offset"}, "puts it at 0"),
    ],
)
def test_every_broken_rule_is_named(mutation: Mutation, rules: set[str], said: str) -> None:
    found, text = mutation()
    assert found == rules
    assert said in text
    assert "train" in text
    assert "batch=4" in text


def test_a_longer_lifespan_than_planned_is_an_overlap() -> None:
    planned = buffers_of((0, 1, 32), (2, 3, 32))
    longer = (replace(planned[0], last=2), planned[1])
    solution = solution_of(planned, [32, 32])
    with pytest.raises(LayoutFault, match=r"\[0, 32\) belong to two buffers at step 2"):
        validate("eval", longer, solution.offsets, solution.height, {}, accesses_of(longer))


LOOPED = buffers_of(
    (0, 3, 64), (1, 2, 16), (2, 4, 64)
)  # steps 1 to 3 are a loop; the second buffer is its own


def loop_faults(buffers: Sequence[Buffer], loops: Loops) -> tuple[set[str], str]:
    """The rules that the checker names where only loops may be wrong, and its text."""
    solution = solution_of(buffers, buffer_sizes(buffers, {"batch": 4}))
    offsets, peak = solution.offsets, solution.height
    try:
        validate("train", buffers, offsets, peak, {"batch": 4}, accesses_of(buffers), loops)
    except LayoutFault as fault:
        return {finding.rule for finding in fault.findings}, str(fault)
    return set(), ""


def test_what_outlives_a_round_is_alive_through_the_loop() -> None:
    first, own, last = LOOPED
    sound = (first, own, replace(last, first=1))
    assert loop_faults(sound, Loops(((1, 3),))) == (set(), "")
    rules, said = loop_faults(LOOPED, Loops(((1, 3),)))
    assert rules == {"loop"}
    assert f"'{last.name}' is alive from step 2 to 4, not through the loop of steps 1 to 3" in said
    assert loop_faults((replace(first, last=2), *sound[1:]), Loops(((1, 3),)))[0] == {"loop"}
    assert loop_faults(sound, Loops(((1, 3),), {own.name: 4}))[0] == {"loop"}


def test_rounds_access_no_more_than_a_buffer_has() -> None:
    (whole,) = buffers_of((0, 3, 16 * BATCH))
    assert loop_faults((whole,), Loops(((1, 3),), {whole.name: 16 * BATCH})) == (set(), "")
    rules, said = loop_faults((whole,), Loops(((1, 3),), {whole.name: 17 * BATCH}))
    assert rules == {"loop"}
    assert f"rounds access 68 bytes of buffer '{whole.name}', which has 64" in said


def test_many_findings_are_counted_not_listed() -> None:
    uses = [[f"ghost{i}" for i in range(14)], *USES[1:]]
    _, text = broken_rules(uses=uses)
    assert "and 4 more" in text


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(lifespans, min_size=2, max_size=14), st.integers(0, 13), st.integers(-300, 300))
def test_a_shifted_buffer_is_always_found(
    rows: list[tuple[int, int, int, bool]], which: int, shift: int
) -> None:
    """Overlap and extent against a byte-by-byte picture of each step."""
    buffers = buffers_of(*((a, a + n, size) for a, n, size, _ in rows))
    sizes = [aligned(b) for b in buffer_sizes(buffers, {})]
    solution = solution_of(buffers, sizes)
    offsets, peak = list(solution.offsets), solution.height
    offsets[which % len(rows)] += shift
    clash = any(
        a.first <= b.last
        and b.first <= a.last
        and set(range(offsets[i], offsets[i] + sizes[i])) & set(range(offsets[j], offsets[j] + sizes[j]))
        for (i, a), (j, b) in itertools.combinations(enumerate(buffers), 2)
    )
    moved = offsets[which % len(rows)]
    outside = moved < 0 or moved + sizes[which % len(rows)] > peak
    found: set[str] = set()
    try:
        validate("train", buffers, offsets, peak, {}, accesses_of(buffers))
    except LayoutFault as fault:
        found = {finding.rule for finding in fault.findings}
    assert ("overlap" in found) == clash
    assert ("extent" in found) == outside
    assert ("alignment" in found) == (moved % 16 != 0)
    assert ("offset" in found) == (shift != 0)
