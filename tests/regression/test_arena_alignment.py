"""With spans of 8 bytes and an odd number of regions the arena began 8 modulo 16. Scratch memory, rounded down to 16,
then lay over the end of the tensor before it: every 32-bit target computed wrong gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from programs import CXX, run

KERNELS = ROOT / "kernels"
PROGRAM = """
#include <stdio.h>
#include "runtime/layout.h"
using namespace minbuild;
int main() {
  for (size_t session = 200; session < 232; session += 4)
    for (size_t span = 8; span <= 16; span += 8)
      for (size_t spans = 0; spans < 40; ++spans)
        for (size_t expressions = 0; expressions < 9; ++expressions) {
          const Layout at = layout_of(session, span, spans, expressions);
          bool aligned = (at.regions | at.values) % 16 == 0 && at.persistent % ALIGNMENT == 0;
          bool apart = at.regions >= session && at.values >= at.regions + spans * span &&
                       at.persistent >= at.values + expressions * 4;
          bool tight = at.persistent < at.values + expressions * 4 + ALIGNMENT;
          if (!aligned || !apart || !tight) return printf("%zu %zu %zu %zu\\n", session, span, spans, expressions), 1;
        }
  return 0;
}
"""


@pytest.mark.parametrize(("large", "alignment"), [(0, 16), (1, 64)])
def test_every_part_of_a_session_is_aligned_for_spans_of_any_size(
    tmp_path: Path, large: int, alignment: int
) -> None:
    (tmp_path / "main.cc").write_text(PROGRAM)
    (tmp_path / "minbuild").mkdir()
    (tmp_path / "minbuild" / "config.h").write_text(f"#define MB_LARGE_PAGES {large}\n")
    run(
        *CXX,
        "-I",
        KERNELS,
        "-I",
        tmp_path,
        f"-DALIGNMENT={alignment}",
        "main.cc",
        "-o",
        "layout",
        cwd=tmp_path,
    )
    run("./layout", cwd=tmp_path)
