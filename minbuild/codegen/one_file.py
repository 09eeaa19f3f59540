"""Options that need the parameters in one file of ONNX Runtime's format, which holds less than 2 GB."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from minbuild.codegen.integrations import WITH_ARRAYS
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import parameter_bytes
from minbuild.planning.compiled_model import CompiledModel


def check_one_file(
    model: CompiledModel, reference: Path | None, abi: str, integrations: Iterable[str]
) -> None:
    """Raises BadInput for the first of these options that `model` cannot have, as its parameters do not fit into such a
    file: a trajectory `reference`, the interface `abi`, `integrations` with the parameters in the program."""
    if model.checkpoint:
        return
    asked = [
        *((f"--reference {reference}",) if reference else ()),
        *((f"--abi {abi}",) if abi else ()),
        *(f"--integration {name}" for name in integrations if name in WITH_ARRAYS),
    ]
    if asked:
        raise BadInput(
            f"{asked[0]}: needs a checkpoint of less than 2 GB, and the parameters of {model.name} take "
            f"{parameter_bytes(model.artifacts.checkpoint):,} bytes. Leave the option out."
        )
