"""The time that a training step would take on so many equal cores: thread_times.cc records the processor time of every
part of every kernel, one after the other on one thread; here they are given to threads as the library gives them."""

from __future__ import annotations

import ctypes
import heapq
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minbuild.codegen.sources import emit_sources
from minbuild.ops import Registry
from minbuild.planning.library_contents import LibraryContents
from minbuild.toolchain import Toolchain, build_library, host_target
from minbuild.training.library import Library

OUTSIDE = "outside of kernels"  # checks of gradients, and what the session does between steps
_BEGINS, _ENDS, _PARTS, _PART = range(4)  # thread_times.cc
_RECORDS = 1000  # by which the time of one is known
_RECORD = np.dtype([("event", "<u4"), ("value", "<u4"), ("nanoseconds", "<u8")])
_RENAMED = (
    ("void run_parts(Team* base", "void run_parts_of_threads(Team* base"),
    ("Status run_divided(ThreadTeam*", "Status run_divided_undisturbed(ThreadTeam*"),
)


def recording_library(
    contents: LibraryContents, registry: Registry, toolchain: Toolchain, path: Path
) -> Library:
    """The library of `contents`, which has threads, with thread_times.cc in it; written to `path`."""
    sources = dict(emit_sources(contents, registry))
    name = next(p for p in sources if p.endswith("runtime/threads.cc"))
    text = sources[name].decode()
    for old, new in _RENAMED:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    sources[name] = text.encode() + Path(__file__).with_suffix(".cc").read_bytes()
    path.write_bytes(build_library(sources, host_target(), toolchain).shared)
    library = Library(path)
    library.handle.mb_take_records.restype = ctypes.c_size_t
    library.handle.mb_take_records.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    library.handle.mb_make_records.restype = None
    library.handle.mb_make_records.argtypes = [ctypes.c_size_t]
    return library


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step: `whole` by kernel, `kept` those outside of parts, `longest` those on the way from the
    beginning to the end where the threads of each kernel share its parts; `works` is how often they began."""

    whole: dict[str, float]
    kept: dict[str, float]
    longest: dict[str, float]
    works: int

    @property
    def total(self) -> float:
        return sum(self.whole.values())

    @property
    def divided(self) -> float:
        """The share of the step that is spent in parts."""
        return 1 - sum(self.kept.values()) / self.total


def step_times(
    library: Library, names: Sequence[str], step: Callable[[], None], repeats: int = 5
) -> StepTimes:
    """The times of `step`, which runs a session of a recording library; `names` are those of its kernels. The shortest
    time of every part and kernel in `repeats` runs counts, so that other work of the machine changes little."""
    runs, rest = [], []
    for number in range(repeats + 1):
        taken(library)
        since = time.thread_time()
        step()
        total = time.thread_time() - since
        records = taken(library)
        if number:  # the first one touches memory
            runs.append(records)
            rest.append(total - float(_spans(records).sum()) / 1e9)
    first = runs[0]
    taken(library)
    library.handle.mb_make_records(_RECORDS)
    clock = float(np.median(np.diff(taken(library)["nanoseconds"].astype(np.int64)))) / 1e9
    assert all(np.array_equal(r[["event", "value"]], first[["event", "value"]]) for r in runs)
    spans = np.maximum(np.min([_spans(r) for r in runs], axis=0) / 1e9 - clock, 0)
    return _summed(first, spans, names, max(min(rest), 0.0))


def taken(library: Library) -> np.ndarray:
    """The records since the last call."""
    found = ctypes.c_void_p()
    count = library.handle.mb_take_records(ctypes.byref(found))
    data = ctypes.string_at(found, count * _RECORD.itemsize)
    return np.frombuffer(data, _RECORD)


def _spans(records: np.ndarray) -> np.ndarray:
    """Nanoseconds before each record since the one before it, 0 where a kernel begins or, outside of one, its parts."""
    spans = np.diff(records["nanoseconds"].astype(np.int64), prepend=0)
    depth = np.cumsum((records["event"] == _BEGINS).astype(int) - (records["event"] == _ENDS))
    starts = (records["event"] == _BEGINS) | ((records["event"] == _PARTS) & (depth == 0))
    return np.where(starts, 0, spans)


def _summed(records: np.ndarray, spans: np.ndarray, names: Sequence[str], outside: float) -> StepTimes:
    whole, kept, longest = (defaultdict[str, float](float) for _ in range(3))
    kept[OUTSIDE] = whole[OUTSIDE] = longest[OUTSIDE] = outside
    name, works = OUTSIDE, 0
    for kind, value, parts, span in _works(records, spans):
        if kind == _BEGINS:
            name = names[value]
        elif kind == _ENDS:
            whole[name] += span
            kept[name] += span
            longest[name] += span
            name = OUTSIDE
        else:
            works += 1
            whole[name] += span + sum(parts)
            kept[name] += span
            longest[name] += span + last_end(parts, value)
    return StepTimes(dict(whole), dict(kept), dict(longest), works)


def _works(records: np.ndarray, spans: np.ndarray) -> Iterator[tuple[int, int, list[float], float]]:
    """Beginnings and ends of kernels, and works: event, row or members, times of parts, time before."""
    at, events, values = 0, records["event"].tolist(), records["value"].tolist()
    while at < len(events):
        event, value, span, parts = events[at], values[at], float(spans[at]), list[float]()
        at += 1
        while event == _PARTS and at < len(events) and events[at] == _PART:
            parts.append(float(spans[at]))
            at += 1
        yield event, value, parts, span


def last_end(parts: Sequence[float], members: int) -> float:
    """When the last of `members` threads ends, each of which takes its own parts first, in their order, and then those
    of others that nobody has begun: as in kernels/runtime/threads.cc."""
    few = members - len(parts) % members
    first = [len(parts) // members * member + max(member - few, 0) for member in range(members + 1)]
    left = [deque(parts[first[member] : first[member + 1]]) for member in range(members)]
    ends = [(0.0, member) for member in range(members)]
    while any(left):
        end, member = ends[0]
        own = next(own for own in (*left[member:], *left[:member]) if own)
        heapq.heapreplace(ends, (end + own.popleft(), member))
    return max(ends)[0]
