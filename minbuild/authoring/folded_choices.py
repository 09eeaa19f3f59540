"""Parameters that a user chose to train, and that an exporter folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from minbuild.authoring.recipe import Recipe, Source
from minbuild.options.did_you_mean import listed


def without_folded_choices(model: Source, recipe: Recipe) -> tuple[Recipe, list[str], tuple[str, ...]]:
    """The `recipe` without names and patterns in `train` that match folded parameters of the `model` alone; a sentence
    for each of these, which is an error; and notes on patterns that match others, too."""
    names = model.graph.initializers
    gone = [n for n in model.metadata.parameters if n not in names]
    kept: list[str] = []
    errors: list[str] = []
    notes: list[str] = []
    for pattern in recipe.train:
        folded = [n for n in gone if fnmatchcase(n, pattern)]
        alone = bool(folded) and pattern not in names and not any(fnmatchcase(n, pattern) for n in names)
        if not alone:
            kept.append(pattern)
        if folded:
            where = errors if alone else notes
            where.append(f"--train {pattern}: {model.path}: {_text(model, folded)}")
    return replace(recipe, train=tuple(kept)), errors, tuple(notes)


def _text(model: Source, folded: Sequence[str]) -> str:
    constants = sorted(set(_constants(model, folded)))
    fate = f"the exporter computed {listed(constants)} of" if constants else "the exporter left out"
    return f"{fate} {listed(folded)}, which do not train then. Export with optimize=False to train them."


def _constants(model: Source, folded: Sequence[str]) -> Iterator[str]:
    for constant, sources in model.metadata.folded.items():
        if constant in model.graph.initializers and not set(folded).isdisjoint(sources):
            yield constant
