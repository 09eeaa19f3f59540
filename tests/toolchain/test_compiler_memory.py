"""The largest compiler process of a build: two run at once on a machine of two processors, beside a proof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compilers

MOST = 800  # MB. One file once took 2,600, and no reduction with an empty cache kept to its memory

BUILD = """
import resource
from dataclasses import replace
from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.planning.library_contents import full_contents
from minbuild.toolchain import build_library, find_toolchain, host_target
operators = registry()
contents = replace(full_contents(operators), avx512=True)  # the most variants of kernels
build_library(emit_sources(contents, operators), host_target(), find_toolchain())
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def test_no_file_of_the_full_library_takes_gigabytes_to_compile(tmp_path: Path) -> None:
    environment = os.environ | {"MINBUILD_CACHE": str(tmp_path)}
    # In a process of its own: the largest of its children are compilers.
    done = subprocess.run(
        [sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True
    )
    assert 100 < int(done.stdout) < MOST
