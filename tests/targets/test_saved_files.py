"""Checkpoints that libraries save by system calls: what becomes of files, links and folders of every kind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "golden"))

from minbuild import assets  # noqa: E402
from minbuild.codegen.library_builder import build_checked  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.toolchain import build_program, find_emulator, find_toolchain, parse_target, why_not_run  # noqa: E402

pytestmark = pytest.mark.targets

TARGETS = (
    *("x86_64-linux-musl", "aarch64-linux-musl", "arm-linux-musleabihf", "riscv64-linux-musl"),
    "loongarch64-linux-musl:generic_la64+f+d",
)
# Saves to each place; its exit code has the bits of those that were written.
SAVES = r"""
#include "minbuild/trainer.h"
int main(void) {
  static const char* const places[] = {"new", "old", "private", "link", "folder", "missing/file", "folder/inside"};
  mb_options options = {0};
  mb_session* session;
  int written = 0;
  if (mb_create_from_files("plan", "checkpoint", &options, &session) != MB_OK) return 255;
  for (int i = 0; i < 7; ++i) written |= (mb_save_checkpoint(session, places[i], 0) == MB_OK) << i;
  mb_destroy(session);
  return written;
}
"""


@pytest.mark.parametrize("name", TARGETS)
def test_files_are_replaced_and_nothing_else_is(name: str, tmp_path: Path) -> None:
    target, toolchain = parse_target(name), find_toolchain()
    emulator = find_emulator(target)
    assert emulator is not None, why_not_run(target)
    model = compile_model(TESTS.parent / "artifacts", {}, {})
    library = build_checked(contents_of([model]), model.registry, target, toolchain)
    assert not library.binary.imports
    header, calls = "include/minbuild/trainer.h", "linux_calls.c"
    sources = {
        "main.c": SAVES.encode(),
        header: (assets.root("kernels") / header).read_bytes(),
        calls: (assets.root("templates") / "verify" / calls).read_bytes(),
    }
    program = tmp_path / "program"
    program.write_bytes(build_program(sources, library.built.archive, target, toolchain, libc=False))
    program.chmod(0o755)
    (tmp_path / "plan").write_bytes(model.plan_bytes)
    (tmp_path / "checkpoint").write_bytes(model.checkpoint)
    for path, mode in (("old", 0o644), ("private", 0o600)):
        (tmp_path / path).write_bytes(b"old")
        (tmp_path / path).chmod(mode)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("old")
    before = os.umask(0o027)
    try:
        code = subprocess.run([*emulator, program], cwd=tmp_path).returncode
    finally:
        os.umask(before)
    assert code == 0b1000111
    saved = (tmp_path / "new").read_bytes()
    for path, mode in (("new", 0o640), ("old", 0o644), ("private", 0o600), ("folder/inside", 0o640)):
        assert (tmp_path / path).read_bytes() == saved and len(saved) > 1000
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "missing").exists()
    assert not list(tmp_path.rglob("*.new*"))
