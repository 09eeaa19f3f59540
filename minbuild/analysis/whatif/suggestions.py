"""Suggestions for smaller trainers: each build option planned and built, and compared with what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

from minbuild.analysis.measure import persistent_of, static_of
from minbuild.analysis.session_memory import arenas_of, session_memory
from minbuild.analysis.speed_features import AVX512, LOOP_VARIANTS, PACKING, THREADS
from minbuild.analysis.target_result import FeatureCost
from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput, Unsupported
from minbuild.formats.detect import read_binary
from minbuild.ir.size_report import Suggestion
from minbuild.options.build_options import OFF, BuildOptions, build_option, table
from minbuild.options.graph_selection import EVALUATE, EVERY, TRAIN
from minbuild.options.option_row import BuildOption
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel, with_compact_checkpoint
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.large_products import packs
from minbuild.planning.library_contents import COMPONENTS, ROLLBACK, LibraryContents
from minbuild.planning.plan_encoding import dense_form, encode_plan, is_wide
from minbuild.toolchain import BuildJob, Builds, Target, Toolchain

MOST = 5  # suggestions that are shown

Models = tuple[CompiledModel, ...]


@dataclass(frozen=True, slots=True)
class _Figures:
    """Bytes of the library, of the models' files, and of RAM with the largest model."""

    file: int
    model: int
    ram: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that could be otherwise, as suggestions print it, and what there would be then."""

    title: str
    changes: str
    how: str
    models: Models
    contents: LibraryContents
    build_options: BuildOptions


@dataclass(frozen=True, slots=True)
class SuggestionBuilds:
    """Measures offers for one target."""

    advisor: SuggestionPlanner
    candidates: tuple[Candidate, ...]
    target: Target
    toolchain: Toolchain
    builds: Builds = field(default_factory=Builds)
    without: Mapping[str, Candidate] = field(default_factory=dict)  # a feature for speed, by its name

    def orders(self) -> tuple[BuildJob, ...]:
        """Everything that is compared."""
        return tuple(map(self._order, (self.advisor.now, *self.candidates, *self.without.values())))

    def suggestions(self) -> tuple[Suggestion, ...]:
        """The offers that save something, what saves most first. Raises ToolchainFailed."""
        now = self._figures(self.advisor.now)
        found = []
        for candidate in self.candidates:
            then = self._figures(candidate)
            saved = now.file - then.file, now.model - then.model, now.ram - then.ram
            found.append(Suggestion(candidate.title, *saved, candidate.changes, candidate.how))
        real = [each for each in found if each.saves > 0]
        return tuple(sorted(real, key=lambda a: (-a.saves, a.title))[:MOST])

    def costs(self) -> Mapping[str, FeatureCost]:
        """The bytes of features for speed, by their names, beside builds without each. Raises ToolchainFailed."""
        now = self._figures(self.advisor.now)
        each = {name: self._figures(candidate) for name, candidate in self.without.items()}
        return {name: FeatureCost(now.file - then.file, now.ram - then.ram) for name, then in each.items()}

    def _order(self, candidate: Candidate) -> BuildJob:
        sources = emit_sources(candidate.contents, candidate.models[0].registry)
        toolchain = self.toolchain.with_build_options(candidate.build_options)
        return BuildJob(sources, self.target, toolchain, archive=False)

    def _figures(self, candidate: Candidate) -> _Figures:
        order, models = self._order(candidate), candidate.models
        built = self.builds[order]
        binary = read_binary("library", str(self.target), built.shared, built.unstripped)
        model = sum(len(m.initial_checkpoint) + len(m.export_template or b"") for m in models)
        if not candidate.contents.compiled:
            model += sum(len(m.plan_bytes) for m in models)
        compiled = candidate.contents.compiled
        arena = max(arena.peak for m in models for arena in arenas_of(m, compiled))
        rolls_back = ROLLBACK in candidate.contents.safety
        persistent = max(persistent_of(m.plan, rolls_back).total for m in models)
        session = session_memory(models, order.sources, self.target, order.toolchain).total
        return _Figures(len(built.shared), model, static_of(binary).total + arena + persistent + session)


@dataclass(frozen=True, slots=True)
class SuggestionPlanner:
    """Knows what could be otherwise. `extra` and `build_options` are what the user asked for."""

    models: Models
    contents: LibraryContents
    extra: ExtraRequirements
    build_options: BuildOptions

    @property
    def now(self) -> Candidate:
        """The library as it is."""
        return Candidate(
            "as it is",
            changes="",
            how="",
            models=self.models,
            contents=self.contents,
            build_options=self.build_options,
        )

    def candidates(self) -> tuple[Candidate, ...]:
        """Everything that could be smaller otherwise."""
        return (*self._sizes(), *self._without_evaluation(), *self._chosen(), *self._asked_for())

    def without_features(self) -> Mapping[str, Candidate]:
        """The library without each of the features for speed that it has, by name."""
        found: dict[str, Candidate] = {}
        if self.contents.avx512:
            found[AVX512] = self._at_smallest(build_option("avx512"))
        if not self.contents.one_variant:
            found[LOOP_VARIANTS] = self._at_smallest(build_option("loop_variants"))
        plans: dict[str, Callable[[PlanOptions], PlanOptions]] = {}
        if self.contents.threads > 1:
            plans[THREADS] = lambda options: replace(options, threads=OFF)
        if packs(self.contents.kernels, self.contents.features):
            plans[PACKING] = lambda options: replace(options, kernels=replace(options.kernels, packs=False))
        for name, change in plans.items():
            # A plan for a budget of RAM would be another one than that without the feature.
            models = None if any(m.options.ram for m in self.models) else self._changed(change)
            if models:
                found[name] = self._planned(name, "", "", models)
        return found

    def with_all_graphs(self) -> LibraryContents:
        """The contents if the device ran all graphs of the models."""
        models = self._replanned({}, EVERY)
        return self.contents if models is None else self._contents(models, self.build_options)

    def _contents(self, models: Models, build_options: BuildOptions) -> LibraryContents:
        return contents_of(models, self.extra, build_options=build_options)

    # ----------------------------------------------------------------------------------------------- sizes

    def _sizes(self) -> Iterator[Candidate]:
        free = {name: size for m in self.models for name, size in m.largest.items()}
        if not free:
            return
        told = ", ".join(f"{name} {size}" for name, size in free.items())
        fixed = self._replanned(free)
        if fixed:
            options = " ".join(f"--dim {quote(f'{name}={size}')}" for name, size in free.items())
            yield self._planned(
                f"fixed sizes: {told}", "Every batch has exactly these sizes.", options, fixed
            )
        half = {name: -(-size // 2) for name, size in free.items()}
        if half == free:
            return
        less = tuple(
            replace(
                m,
                largest=sizes,
                plan_bytes=encode_plan(
                    m.plan, sizes, is_wide(m.plan_bytes), m.options.kernel_names, dense_form(m.plan_bytes)
                ),
            )
            for m in self.models
            for sizes in ({name: half[name] for name in m.largest},)
        )
        yield Candidate(
            f"memory for sizes up to {', '.join(f'{name} {size}' for name, size in half.items())}",
            changes="Larger batches need more memory than a session has by default.",
            how=" ".join(f"--max-dim {quote(f'{name}={size}')}" for name, size in half.items()),
            models=less,
            contents=self.contents,
            build_options=self.build_options,
        )

    def _planned(
        self, title: str, changes: str, how: str, models: Models, build_options: BuildOptions | None = None
    ) -> Candidate:
        chosen = build_options or self.build_options
        return Candidate(
            title,
            changes=changes,
            how=how,
            models=models,
            contents=self._contents(models, chosen),
            build_options=chosen,
        )

    def _changed(self, change: Callable[[PlanOptions], PlanOptions]) -> Models | None:
        """The models planned anew with options as `change` makes them, in the encoding of their plans."""
        models = self._replanned({}, change=change)
        if models is None:
            return None
        found = []
        for new, old in zip(models, self.models, strict=True):
            form = is_wide(old.plan_bytes), old.options.kernel_names, dense_form(old.plan_bytes)
            straight = old.straight & {kernel.symbol for kernel in new.plan.kernels}
            data = encode_plan(new.plan, new.largest, *form)
            found.append(replace(new, plan_bytes=data, straight=straight))
        return tuple(found)

    def _replanned(
        self,
        fixed: Mapping[str, int],
        graphs: Sequence[str] = (),
        change: Callable[[PlanOptions], PlanOptions] = lambda options: options,
    ) -> Models | None:
        """The models planned anew with `fixed` sizes where they have such dimensions, for other `graphs`, and with
        options as `change` makes them; None where one of them cannot be."""
        found = []
        for m in self.models:
            sizes = {**m.fixed, **{n: size for n, size in fixed.items() if n in m.largest}}
            free = {n: size for n, size in m.largest.items() if n not in sizes}
            given = m.artifacts, m.checkpoint, m.registry, sizes, free
            try:
                options = replace(
                    m.options, graphs=tuple(graphs) or m.options.graphs, threads=str(m.threads), ram=None
                )
                new = compile_artifacts(*given, options=change(options))
                new = with_compact_checkpoint(new) if m.compact_checkpoint else new
            except (BadInput, Unsupported):
                return None
            found.append(replace(new, components=m.components, export_template=m.export_template))
        return tuple(found)

    # --------------------------------------------------------------------------------------- what is left out

    def _without_evaluation(self) -> Iterator[Candidate]:
        evaluates = EVALUATE in self.build_options.graphs and any(m.artifacts.evaluation for m in self.models)
        rest = tuple(name for name in self.build_options.graphs if name != EVALUATE)
        exported = any(
            m.export_template for m in self.models
        )  # what is exported is part of the evaluation model
        if not evaluates or exported or TRAIN not in rest:
            return
        models = self._replanned({}, rest)
        if models:
            yield self._planned(
                "training without evaluation",
                "The device trains and saves, but does not evaluate: mb_eval_step fails.",
                f"--graphs {','.join(rest)}",
                models,
                replace(self.build_options, graphs=rest),
            )

    def _chosen(self) -> Iterator[Candidate]:
        for option in table():
            if not option.tradeoff or getattr(self.build_options, option.name) == option.min_size:
                continue
            yield self._at_smallest(option)

    def _at_smallest(self, option: BuildOption) -> Candidate:
        """The library with an option at the value that makes it smallest."""
        chosen: dict[str, Any] = {option.name: option.min_size}
        build_options = replace(self.build_options, **chosen)
        return Candidate(
            option.title,
            changes=option.tradeoff,
            how=f"--{option.key} {option.min_size}",
            models=self.models,
            contents=self._contents(self.models, build_options),
            build_options=build_options,
        )

    def _asked_for(self) -> Iterator[Candidate]:
        for component in sorted(self.contents.components):
            yield Candidate(
                f"without the component {component}",
                changes=f"The library lacks: {COMPONENTS[component][1]}.",
                how=f"leave out --with {component}",
                models=tuple(
                    replace(m, export_template=None if component == "export" else m.export_template)
                    for m in self.models
                ),
                contents=replace(self.contents, components=self.contents.components - {component}),
                build_options=self.build_options,
            )
        if self.extra.include or self.extra.required:
            yield Candidate(
                "without operators that these models do not need",
                changes="The library trains these models only.",
                how="leave out --include-op and --ort-config",
                models=self.models,
                contents=contents_of(
                    self.models,
                    replace(self.extra, include=(), required=None),
                    build_options=self.build_options,
                ),
                build_options=self.build_options,
            )
