"""Features that make steps faster for bytes, and whose choice follows from the sizes of the models: the choice, the
figures that decided, and the price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from minbuild.analysis.target_result import FeatureCost
from minbuild.ir.size_report import SpeedFeature
from minbuild.ops.convolution.conv_layer import LARGE_WORK
from minbuild.ops.core.elementwise import MANY_ELEMENTS
from minbuild.ops.linear_algebra.gemm_packing import LARGE_MATRIX, LARGE_PRODUCT, MEDIUM
from minbuild.options.build_options import AUTO, OFF, BuildOptions
from minbuild.passes.rewrite.checkpointing import TRAIN
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.large_products import packs, widening
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.loop_variants import FEW_ELEMENTS
from minbuild.planning.threads import LEAST_STEP, MOST_THREADS, StepWork
from minbuild.toolchain import Target

PACKING, AVX512, THREADS, LOOP_VARIANTS = "packing", "avx512", "threads", "loop-variants"
_TITLES = {
    PACKING: "Packed products",
    AVX512: "AVX-512",
    THREADS: "Threads",
    LOOP_VARIANTS: "Variants of inner loops",
}
_YES, _NO = "yes", "no"
_NAMED = 4  # kernels and features that a reason lists


def speed_features(
    models: Sequence[CompiledModel],
    works: Sequence[StepWork],
    contents: LibraryContents,
    asked: BuildOptions,
    target: Target,
    costs: Mapping[str, FeatureCost],
) -> tuple[SpeedFeature, ...]:
    """A feature each. `contents` are those of the library of `models`, which have `works`, for `target`, `asked` the
    options of the user, `costs` the bytes of features by name, where they were measured."""
    choices = {
        PACKING: _packing(models, works, contents),
        AVX512: _avx512(contents, asked, target),
        THREADS: _threads(models, works, contents, asked=asked, target=target),
        LOOP_VARIANTS: _loop_variants(models, contents, asked),
    }
    return tuple(_feature(name, *choice, costs.get(name)) for name, choice in choices.items())


def _feature(name: str, chosen: str, reason: str, cost: FeatureCost | None) -> SpeedFeature:
    if cost is None or chosen == _NO:
        return SpeedFeature(name, _TITLES[name], chosen, reason)
    return SpeedFeature(name, _TITLES[name], chosen, reason, file=cost.file, ram=cost.ram)


def _packing(
    models: Sequence[CompiledModel], works: Sequence[StepWork], contents: LibraryContents
) -> tuple[str, str]:
    if not all(m.options.kernels.packs for m in models):
        return _NO, "--loop-variants one leaves it out."
    multiplying = [k for m in models for k in _multiplying(m)]
    packed = sum(function.endswith("_packed") for function in multiplying)
    largest = max((work.largest for work in works), default=0)
    free = any(m.plan.symbols for m in models)
    figure = f"the largest takes {largest:,} multiplications{' with free dimensions of 1' if free else ''}"
    of_step = f"{len(multiplying):,} products and convolutions of a training step"
    if packed:
        return _YES, f"{packed:,} of {of_step} are large enough: {figure}."
    if any(packs(m.plan.kernels, m.plan.features) for m in models):
        return _YES, f"Products with quantized weights, or of another graph, are large enough; {figure}."
    if packs(contents.kernels, contents.features):
        return _YES, "Operators beyond those of the models have such kernels."
    if not multiplying:
        return _NO, "A training step has no products or convolutions."
    return _NO, (
        f"None of {of_step} is large enough: {figure}. Packing pays from {LARGE_PRODUCT:,} on where all sizes are "
        f"{MEDIUM} and more, from {LARGE_WORK:,} an image on for convolutions, and with matrices of {LARGE_MATRIX:,} "
        "known elements."
    )


def _multiplying(model: CompiledModel) -> Iterator[str]:
    """The functions of a training step's kernels that multiply."""
    for routine in model.plan.routines:
        for step in routine.steps if routine.name == TRAIN else ():
            function = model.plan.kernels[step.kernel].function
            if model.registry.functions[function].work is not None:
                yield function


def _avx512(contents: LibraryContents, asked: BuildOptions, target: Target) -> tuple[str, str]:
    if target.traits.arch != "x86_64":
        return _NO, "It is for x86-64."
    gains = widening(contents.kernels, contents.features)
    if contents.avx512:
        more = f" and {len(gains) - _NAMED} more" if len(gains) > _NAMED else ""
        return _YES, f"It has loops that gain: {', '.join(gains[:_NAMED])}{more}."
    if gains and asked.avx512 == OFF:
        return _NO, "--avx512 off."
    return _NO, f"Nothing is packed, and no elementwise function has {MANY_ELEMENTS:,} known elements."


def _threads(
    models: Sequence[CompiledModel],
    works: Sequence[StepWork],
    contents: LibraryContents,
    asked: BuildOptions,
    target: Target,
) -> tuple[str, str]:
    threads = contents.threads
    chosen = f"{threads}" if threads > 1 else _NO
    if asked.threads != AUTO:
        return chosen, f"--threads {asked.threads}."
    if target.traits.no_threads:
        return chosen, f"Libraries for {target} make none: {target.traits.no_threads}."
    if all(m.options.threads == OFF for m in models):
        return chosen, "Another target of this build has none."
    work = max(works, key=lambda w: min(w.one, w.divided))
    free = any(m.plan.symbols for m in models)
    one, some = (f" with free dimensions of {n}" if free else "" for n in (1, 8))
    reason = (
        f"One run of every graph takes the time of {work.one:,} multiplications{one}, calls that threads share that of "
        f"{work.divided:,}{some}: threads pay from {LEAST_STEP:,} on."
    )
    if threads < MOST_THREADS and min(work.one, work.divided) >= LEAST_STEP:
        reason += (
            " Scratch memory of more of them would take over a quarter of the RAM, or more than --ram leaves."
        )
    return chosen, reason


def _loop_variants(
    models: Sequence[CompiledModel], contents: LibraryContents, asked: BuildOptions
) -> tuple[str, str]:
    chosen = "one" if contents.one_variant else "all"
    if asked.loop_variants != AUTO:
        return chosen, f"--loop-variants {asked.loop_variants}."
    symbols = sorted({name for m in models for name in m.plan.symbols})
    if symbols:
        return chosen, f"Sizes are chosen when it runs: {', '.join(symbols)}."
    shapes = (tensor.shape for m in models for tensor in m.plan.tensors)
    largest = max((prod(d for d in shape if isinstance(d, int)) for shape in shapes), default=0)
    reason = f"The largest tensor has {largest:,} elements; up to {FEW_ELEMENTS} one variant is as fast."
    return (
        chosen,
        reason if contents.one_variant or largest > FEW_ELEMENTS else "It is for other models, too.",
    )
