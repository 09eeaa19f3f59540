"""Sessions of the golden trainers, and of libraries that are built for a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import GOLDEN, trainer
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.training.library import Library, TrainerError


def built(folder: Path, **changes: object) -> Library:
    """The library of the residual network with other contents, built into `folder`."""
    contents = trainer(GOLDEN / "residual").contents
    sources = emit_sources(replace(contents, **changes), registry())  # type: ignore[arg-type]
    path = folder / "library.so"
    path.write_bytes(shared_library(sources))
    return Library(path)


def refusal(call: object) -> TrainerError:
    """The error that `call` raises."""
    with pytest.raises(TrainerError) as caught:
        call()  # type: ignore[operator]
    return caught.value
