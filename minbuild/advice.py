"""What else would make a trainer smaller: each choice planned and built, and compared with what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from minbuild.emit import PARTS, Contents, emit_sources
from minbuild.errors import BadInput, Unsupported
from minbuild.needs import Wishes, contents_of
from minbuild.plan_format import encode_plan
from minbuild.planned import Model, plan_bundle
from minbuild.size.formats import read_binary
from minbuild.size.measure import persistent_of, static_of
from minbuild.size.report import Advice
from minbuild.toolchain import Target, Toolchain, build_library

MOST = 5  # pieces of advice that are shown

Models = tuple[Model, ...]


@dataclass(frozen=True, slots=True)
class _Figures:
    """Bytes of the library, of the models' files, and of RAM with the largest model."""

    file: int
    model: int
    ram: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """Something that could be otherwise, as Advice tells it, and what there would be then."""

    title: str
    changes: str
    how: str
    models: Models
    contents: Contents


@dataclass(frozen=True, slots=True)
class Advisor:
    """Measures choices for one target. `wishes` and `checks_loss` are what the user asked for."""

    models: Models
    contents: Contents
    wishes: Wishes
    checks_loss: bool
    target: Target
    toolchain: Toolchain
    say: Callable[[str], None] = lambda line: None

    def advice(self) -> tuple[Advice, ...]:
        """The choices that save something, what saves most first. Raises ToolchainFailed."""
        now = self._figures(self.models, self.contents)
        found = []
        for choice in self._choices():
            self.say(f"advice: {choice.title}")
            then = self._figures(choice.models, choice.contents)
            saved = now.file - then.file, now.model - then.model, now.ram - then.ram
            found.append(Advice(choice.title, *saved, choice.changes, choice.how))
        real = [advice for advice in found if advice.saves > 0]
        return tuple(sorted(real, key=lambda a: (-a.saves, a.title))[:MOST])

    def _figures(self, models: Models, contents: Contents) -> _Figures:
        built = build_library(
            emit_sources(contents, models[0].registry), self.target, self.toolchain, progress=self.say
        )
        binary = read_binary("library", str(self.target), built.shared, built.twin)
        model = sum(len(m.plan_bytes) + len(m.checkpoint) + len(m.mold or b"") for m in models)
        arena = max(arena.peak for m in models for arena in m.arenas)
        persistent = max(persistent_of(m.plan).total for m in models)
        return _Figures(len(built.shared), model, static_of(binary).total + arena + persistent)

    def _choices(self) -> Iterator[_Choice]:
        yield from self._sizes()
        yield from self._without_evaluation()
        yield _Choice(
            "no files: plan and checkpoint from memory",
            "Sessions are made from bytes that the program holds, in memory that it gives; nothing is read from or "
            "written to files.",
            "MB_FILES 0 in src/minbuild/config.h of the package, built with its CMakeLists.txt",
            self.models,
            replace(self.contents, files=False),
        )
        yield from self._asked_for()

    # ----------------------------------------------------------------------------------------------- sizes

    def _sizes(self) -> Iterator[_Choice]:
        free = {name: size for m in self.models for name, size in m.largest.items()}
        if not free:
            return
        told = ", ".join(f"{name} {size}" for name, size in free.items())
        fixed = self._replanned(lambda m: m, {**free})
        if fixed:
            options = " ".join(f"--dim {name}={size}" for name, size in free.items())
            yield self._planned(
                f"fixed sizes: {told}", "Every batch has exactly these sizes.", options, fixed
            )
        half = {name: -(-size // 2) for name, size in free.items()}
        if half == free:
            return
        less = tuple(
            replace(m, largest=sizes, plan_bytes=encode_plan(m.plan, sizes))
            for m in self.models
            for sizes in ({name: half[name] for name in m.largest},)
        )
        yield _Choice(
            f"memory for sizes up to {', '.join(f'{name} {size}' for name, size in half.items())}",
            "Larger batches need more memory than a session has by default.",
            " ".join(f"--max {name}={size}" for name, size in half.items()),
            less,
            self.contents,
        )

    def _planned(self, title: str, changes: str, how: str, models: Models) -> _Choice:
        return _Choice(title, changes, how, models, contents_of(models, self.wishes))

    def _replanned(self, edit: Callable[[Model], Model], fixed: Mapping[str, int]) -> Models | None:
        """The models planned anew after `edit`, with `fixed` sizes where they have such dimensions; None where one
        of them cannot be."""
        found = []
        for model in self.models:
            m = edit(model)
            sizes = {**m.fixed, **{n: size for n, size in fixed.items() if n in m.largest}}
            free = {n: size for n, size in m.largest.items() if n not in sizes}
            try:
                new = plan_bundle(
                    m.bundle, m.checkpoint, m.registry, sizes, free, checks_loss=self.checks_loss
                )
            except (BadInput, Unsupported):
                return None
            found.append(replace(new, parts=m.parts, mold=m.mold))
        return tuple(found)

    # --------------------------------------------------------------------------------------- what is left out

    def _without_evaluation(self) -> Iterator[_Choice]:
        graphs = [(m.bundle.evaluation, m.bundle.training) for m in self.models]
        sources = [graph.source for graph, training in graphs if graph and graph.source != training.source]
        exported = any(m.mold for m in self.models)  # what is exported is a part of the evaluation model
        if not sources or exported:
            return
        models = self._replanned(lambda m: replace(m, bundle=replace(m.bundle, evaluation=None)), {})
        if models:
            yield self._planned(
                "training without evaluation",
                "The device trains and saves, but does not evaluate: mb_eval_step fails.",
                f"leave {' and '.join(dict.fromkeys(sources))} out of the artifacts",
                models,
            )

    def _asked_for(self) -> Iterator[_Choice]:
        for part in sorted(self.contents.parts):
            yield _Choice(
                f"without the part {part}",
                f"The library lacks: {PARTS[part][1]}.",
                f"leave out --with {part}",
                tuple(replace(m, mold=None if part == "export" else m.mold) for m in self.models),
                replace(self.contents, parts=self.contents.parts - {part}),
            )
        if self.wishes.include or self.wishes.required:
            yield _Choice(
                "without operators that these models do not need",
                "The library trains these models only.",
                "leave out --include-op and --require",
                self.models,
                contents_of(self.models, replace(self.wishes, include=(), required=None)),
            )
