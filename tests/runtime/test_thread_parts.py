"""Which thread takes which parts of a kernel's work: neighbours, the same ones each time, and then what others left."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.plan import build_plan
from minbuild.toolchain import build_library, find_toolchain, host_target

MOST = 8
# Appended to runtime/threads.cc: members of a pool work one after the other, from `first` on, so that the first one
# takes all parts. Which, in their order, go to `taken`.
SOURCE = b"""
namespace minbuild {
namespace {
struct Record {
  int32_t first, count;
  int32_t* taken;
};
void pool(void* user, mb_task task, void* work, int32_t count) {
  for (int32_t i = 0; i < count; ++i) task(work, (static_cast<Record*>(user)->first + i) % count);
}
void add_part(const void* work, int32_t part, int32_t member) {
  Record* record = const_cast<Record*>(static_cast<const Record*>(work));
  if (member == record->first) record->taken[record->count++] = part;
}
}  // namespace
}  // namespace minbuild
extern "C" __attribute__((visibility("default"), used)) int32_t mb_take_all_parts(int32_t members, int32_t parts,
                                                                               int32_t first, int32_t* taken) {
  minbuild::Record record = {first, 0, taken};
  minbuild::ThreadTeam team = {};
  team.members = members, team.parallel = minbuild::pool, team.user = &record;
  minbuild::run_parts(&team, members, parts, minbuild::add_part, &record);
  return record.count;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    operators = registry()
    node = trainers.one_node(operators.ops[":Relu"], TestCase("", (np.ones((4, 4)),)))
    plan = build_plan(optimize(lower(node.artifacts, operators, {}), operators), operators, MOST)
    sources = dict(emit_sources(replace(trainers.contents_of([plan]), threads=MOST), operators))
    name = next(path for path in sources if path.endswith("runtime/threads.cc"))
    sources[name] += SOURCE
    path = tmp_path_factory.mktemp("library") / "library.so"
    path.write_bytes(build_library(sources, host_target(), find_toolchain()).shared)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("members", [2, 3, MOST])
@pytest.mark.parametrize("parts", [2, 3, 4, 7, 16, 1001])
def test_a_thread_begins_with_parts_of_its_own_and_goes_on_with_those_of_others(
    library: ctypes.CDLL, members: int, parts: int
) -> None:
    begins = [0]  # of the parts of each member, the first: the last members have one more
    for member in range(members):
        begins.append(begins[-1] + (parts + member) // members)
    assert begins[-1] == parts
    for member in range(members):
        taken = (ctypes.c_int32 * parts)()
        assert library.mb_take_all_parts(members, parts, member, taken) == parts
        assert list(taken) == [*range(begins[member], parts), *range(begins[member])]
