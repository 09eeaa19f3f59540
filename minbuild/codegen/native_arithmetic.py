"""Native arithmetic of halves: refuses libraries that would emulate it, and models that have no use for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minbuild.codegen.library_builder import TrimmedAndFull
from minbuild.errors import BadInput
from minbuild.ir import Kernel

_KERNEL = "half_contraction"
_NAMES = {
    "half": ("float16", "fullfp16 (vector arithmetic of float16)"),
    "bfloat16": ("bfloat16", "bf16 (BFDOT)"),
}


def check_halves(kernels: Iterable[Kernel]) -> None:
    """Raises BadInput where none of `kernels`, those of the library to be built, is a product of halves."""
    if all(kernel.function != _KERNEL for kernel in kernels):
        raise BadInput(
            "--half-arithmetic native: the model has no product of two tensors of float16, or of bfloat16. Leave the "
            "option out."
        )


def check_native(pairs: Iterable[TrimmedAndFull]) -> None:
    """Raises BadInput for a target whose library has no instructions for the products of its model. The sources
    compute the same numbers on any machine, one by one, to prove others with; `multiply_halves` in half_gemm.h has a
    name that shows which."""
    for pair in pairs:
        if missing := sorted(set(_emulated(pair))):
            features = " and ".join(_NAMES[name][1] for name in missing)
            arm = pair.target.name if pair.target.name.startswith("aarch64") else "aarch64-linux-gnu"
            raise BadInput(
                f"--half-arithmetic native: {pair.target} has no arithmetic of "
                f"{' and '.join(_NAMES[name][0] for name in missing)}. Name a processor that has {features}, such as "
                f"--target {arm}:neoverse_n2 or {arm}:generic+fullfp16+bf16, or leave the option out."
            )


def _emulated(pair: TrimmedAndFull) -> Iterator[str]:
    for symbol in pair.trimmed.binary.symbols:
        for name in _NAMES:
            if f"multiply_halves<{name}, 0>" in symbol.name.replace("minbuild::", ""):
                yield name
