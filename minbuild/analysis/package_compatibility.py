"""Compatibility of a package's library with another model, and the capabilities that it lacks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minbuild.codegen.ownership import MANIFEST, TOOL
from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.ir import Kernel
from minbuild.options.build_options import COMPILED
from minbuild.options.graph_selection import EVERY
from minbuild.planning.capabilities import Capabilities, capabilities_of, from_dict
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan_encoding import DENSE_VERSIONS, FUSED_VERSION, IDLE_VERSION, WIDE_VERSION


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package as its manifest describes it; `minbuild` is the version that made it, `graphs` are those of
    graphs.GRAPHS that it was made for; `compiled_in` are the files of the model whose plan the library has compiled in,
    empty where it reads plans."""

    folder: Path
    minbuild: str
    capabilities: Capabilities
    targets: tuple[str, ...]
    graphs: tuple[str, ...]
    compiled_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def held(self) -> frozenset[str]:
        """The functions of its kernels, its features and its operators of sizes."""
        functions = (symbol.partition("<")[0] for symbol in self.capabilities.kernels)
        return self.capabilities.features.union(functions, self.capabilities.expressions)

    @property
    def fused_updates(self) -> bool:
        """True if its training steps update parameters."""
        return bool(self.capabilities.plan & FUSED_VERSION)

    @property
    def native_halves(self) -> bool:
        """True if it has kernels that multiply halves by native arithmetic."""
        return any(symbol.startswith("half_contraction<") for symbol in self.capabilities.kernels)


_ANOTHER = (
    "{}: the library has the plan of its own model compiled in, and runs no other. Reduce this model by itself, "
    "or both together with --flavor interpreted."
)


def read_package(folder: Path) -> InstalledPackage:
    """Read the manifest of a package. Raises BadInput where there is none, or one without capabilities."""
    path = folder / MANIFEST
    try:
        manifest: Mapping[str, Any] = json.loads(
            read_file(path, "Give the folder that minbuild reduce wrote.")
        )
        if manifest["tool"] != TOOL:
            raise ValueError("another tool made it")
        listed = manifest["graphs"]
        graphs = tuple(name for name in EVERY if name in listed)
        if not graphs:
            raise ValueError(f"no graphs among {listed!r}")
        holds, targets = from_dict(manifest["holds"]), tuple(manifest["targets"])
        compiled_in = dict(manifest["model"]) if manifest.get("flavor") == COMPILED else {}
        return InstalledPackage(
            folder,
            minbuild=manifest["minbuild"],
            capabilities=holds,
            targets=targets,
            graphs=graphs,
            compiled_in=compiled_in,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: does not say what the library holds ({type(error).__name__}: {error}). Give a package of "
            "`minbuild reduce`, or reduce again."
        ) from error


def in_package_form(model: CompiledModel, package: InstalledPackage) -> CompiledModel:
    """`model` with its plan in the encoding that the library of `package` reads, where that is a dense one and has
    enough for it."""
    mask = DENSE_VERSIONS[3] | DENSE_VERSIONS[4]
    for form in (1, 2, 3, 4):
        if package.capabilities.plan & mask == DENSE_VERSIONS[form]:
            model = (with_dense_plans((model,), form) or (model,))[0]
    return model


def missing_capabilities(model: CompiledModel, package: InstalledPackage) -> tuple[str, ...]:
    """One sentence, with its cure, for everything that the plan of a model, in the encoding of the package, needs and
    the library does not hold."""
    if package.compiled_in:
        own = {
            name: digest for name, digest in package.compiled_in.items() if name in model.artifacts.digests
        }
        same = all(model.artifacts.digests[name] == digest for name, digest in own.items())
        return () if own and same else (_ANOTHER.format(package.folder),)
    contents = contents_of((model,))
    needed = capabilities_of(contents)
    available, where = package.capabilities, str(package.folder)
    differs = (needed.plan ^ available.plan) & ~IDLE_VERSION
    if differs == WIDE_VERSION:
        there, here = (64, 32) if available.plan & WIDE_VERSION else (32, 64)
        return (
            f"{where}: reads plans with {there}-bit sizes, and that of this model has {here}-bit ones. Reduce for both "
            "models together.",
        )
    if differs:
        return (
            f"{where}: reads plans of version {available.plan}, and this minbuild writes version {needed.plan}. Reduce "
            f"again, or use minbuild {package.minbuild}.",
        )
    return (*_kernels(contents, needed, available, model, where), *_parts(needed, available, where))


def _kernels(
    contents: LibraryContents, needed: Capabilities, available: Capabilities, model: CompiledModel, where: str
) -> Iterator[str]:
    asking = _asking(model)
    functions = {symbol.partition("<")[0] for symbol in available.kernels}
    for kernel in contents.kernels:
        symbol, nodes = kernel.symbol, _example(asking[kernel])
        if symbol not in available.kernels:
            what = "type" if kernel.function in functions else "kernel"
            yield f"{where}: lacks the {what} {symbol}, which {nodes} needs. Reduce for both models together."
        elif available.kernels[symbol] != needed.kernels[symbol]:
            yield f"{where}: its kernel {symbol} takes other arguments, for {nodes}. Reduce again with this minbuild."
    stems = {kernel.stem: kernel for kernel in contents.kernels}
    for feature in sorted(needed.features - available.features):
        stem, _, name = feature.partition(".")
        nodes = _example([n for k in asking if k.stem == stem for n in asking[k]])
        if stems[stem].symbol in available.kernels:
            yield f"{where}: lacks the feature '{name}' of {stem}.cc, for {nodes}. Reduce for both models together."


def _asking(model: CompiledModel) -> Mapping[Kernel, Sequence[str]]:
    """The nodes that run each kernel."""
    found: dict[Kernel, list[str]] = defaultdict(list)
    for routine in model.plan.routines:
        for step in routine.steps:
            found[model.plan.kernels[step.kernel]].append(step.node)
    return found


def _example(nodes: Sequence[str]) -> str:
    return f"node '{nodes[0]}'" if nodes else "the model"


def _parts(needed: Capabilities, available: Capabilities, where: str) -> Iterator[str]:
    if needed.symbols and not available.symbols:
        yield f"{where}: knows no free dimensions. Fix them with --dim, or reduce for both models together."
    elif needed.expressions - available.expressions:
        names = ", ".join(sorted(needed.expressions - available.expressions))
        yield f"{where}: lacks {names} in sizes. Fix dimensions with --dim, or reduce for both models together."
    if needed.plan & ~available.plan & IDLE_VERSION:
        yield f"{where}: looks for moments in memory that this optimizer never reads. Reduce again, for both models."
    if needed.loops > available.loops:
        yield f"{where}: runs no steps per sample. Reduce for both models together."
    if needed.draws and not available.draws:
        yield f"{where}: saves no seeds of single nodes. Reduce for both models together."
    if needed.frozen_parameters and not available.frozen_parameters:
        yield f"{where}: reads no frozen parameters. Reduce for both models together."
