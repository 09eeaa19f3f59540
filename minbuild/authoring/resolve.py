"""Resolves a recipe against a model, and collects every problem with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from minbuild.authoring.autodiff.gradient_operator import without_gradient_nodes
from minbuild.authoring.bounded_loops import with_bounded_loops
from minbuild.authoring.fixed_inputs import is_single_number, with_fixed_inputs, with_known_branches
from minbuild.authoring.folded_choices import without_folded_choices
from minbuild.authoring.folded_constants.unfold import with_unfolded_constants
from minbuild.authoring.integer_operators.rewrite import with_float_operators
from minbuild.authoring.loop_weights import with_weights_in_loops
from minbuild.authoring.lora import with_adapters
from minbuild.authoring.loss_graph import with_loss
from minbuild.authoring.masked_selection import with_fixed_selections
from minbuild.authoring.merged_parameters import with_merged_parameters_apart
from minbuild.authoring.optimizers import optimizer_graph
from minbuild.authoring.parameters import (
    chosen,
    has_parameters,
    known_frozen,
    parameter_names,
    with_lifted_constants,
)
from minbuild.authoring.quantization import with_fake_quantization
from minbuild.authoring.recipe import OwnLoss, Recipe, Source
from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.frontend.onnx.exporter_metadata import ExporterMetadata
from minbuild.frontend.onnx.optional_elimination import without_optionals
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import Graph
from minbuild.ir.dims import symbols_in
from minbuild.ops import Registry
from minbuild.options.did_you_mean import did_you_mean, listed

_Names = TypeVar("_Names")


@dataclass(frozen=True)
class ResolvedRecipe:
    """The graph with the loss behind it, and by name: the loss and what it returns beside it, parameters that train,
    and those that do not; and the optimizer model, if there is one."""

    graph: Graph
    losses: tuple[str, ...]
    train: tuple[str, ...]
    frozen: tuple[str, ...]
    optimizer: Graph | None
    metadata: ExporterMetadata
    notes: tuple[str, ...] = ()


def resolve_recipe(
    model: Source, recipe: Recipe, operators: Registry, also: Iterable[str] = ()
) -> ResolvedRecipe:
    """A recipe resolved against `model`: every name in it found, every option checked. `operators` have the shape
    rules. Raises BadInput with everything that is wrong with `recipe`, and with the sentences in `also`; Unsupported
    with what is in the model."""
    findings = list(also)
    model, recipe = with_fixed_inputs(with_bounded_loops(model, recipe), recipe)
    model, told = _plain(model, operators, keeps_merged=recipe.tolerant)
    graph, left_out = with_fixed_selections(
        model.graph,
        model.opset,
        operators,
        needed=_needed(model, recipe),
        sizes=recipe.sizes,
        changing=_changing(model, recipe),
    )
    model = replace(model, graph=graph)
    recipe, folded, kept = without_folded_choices(model, recipe)
    findings += folded
    told = (*told, *left_out, *kept)

    def tried(action: Callable[[], _Names]) -> _Names | None:
        try:
            return action()
        except BadInput as error:
            findings.append(str(error))
            return None

    adapted = tried(lambda: with_adapters(model, recipe.lora))
    if adapted is not None and adapted[1]:
        model, recipe = adapted[0], replace(recipe, train=(*adapted[1], *recipe.train))
    findings += _unknown_sizes(model, recipe)
    made = tried(lambda: with_loss(model, recipe, operators))
    graph, losses = made or (model.graph, ())
    split, notes = None, tuple[str, ...]()
    if made is not None or not _is_own(recipe.loss):
        frozen, notes = known_frozen(graph, recipe.frozen) if recipe.tolerant else (recipe.frozen, ())
        split = tried(lambda: _split(graph, recipe, frozen, model, losses))
        findings += _wrong_values(model, recipe, graph)
    optimizer = tried(lambda: (_optimizer(recipe),))
    if findings:
        raise BadInput("\n".join(findings))
    assert made is not None and split is not None and optimizer is not None
    return ResolvedRecipe(graph, losses, *split, *optimizer, model.metadata, (*told, *notes))


def _needed(model: Source, recipe: Recipe) -> tuple[str, ...] | None:
    """The values that the recipe needs of the model; None where its loss may read any."""
    if _is_own(recipe.loss):
        return None
    of_loss = recipe.loss_inputs if recipe.loss else tuple(n for n in (recipe.loss_output,) if n)
    return (*(of_loss or model.graph.outputs[:1]), *recipe.outputs)


def _changing(model: Source, recipe: Recipe) -> tuple[str, ...]:
    """The initializers that the checkpoint will have, as far as the recipe fits the model by itself."""
    try:
        train, frozen = _split(model.graph, recipe, known_frozen(model.graph, recipe.frozen)[0], model, ())
    except BadInput:  # which is reported when the model has its loss
        return ()
    return (*train, *frozen)


def _plain(model: Source, operators: Registry, keeps_merged: bool) -> tuple[Source, tuple[str, ...]]:
    """The model with weights as initializers, also those that its exporter folded into constants or, unless
    `keeps_merged`, merged; without Gradient nodes, and with quantisation through which gradients flow; and notes.
    Raises Unsupported."""
    model = replace(model, graph=with_float_operators(model.graph, model.opset))
    model, unfolded = with_unfolded_constants(model)
    taken = without_optionals(with_known_branches(model.graph, operators))
    scalars = model.metadata.parameters
    taken = with_lifted_constants(with_weights_in_loops(taken))
    if not (keeps_merged or scalars):  # whose exporter says what it merged
        taken, told = with_merged_parameters_apart(taken)
        unfolded = (*unfolded, *told)
    graph, notes = with_fake_quantization(taken)
    names = parameter_names(graph, scalars)
    there = parameter_names(taken, scalars)
    if lost := [n for n in parameter_names(model.graph, scalars) if n not in there]:
        notes = (f"{listed(lost)}: the branches that read them are never taken; they do not train.", *notes)
    graph = without_gradient_nodes(graph, names, operators, model.opset)
    return replace(model, graph=graph), (*unfolded, *notes)


def _split(
    graph: Graph, recipe: Recipe, frozen: Sequence[str], model: Source, losses: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameters that train, and that do not."""
    metadata = model.metadata
    if recipe.tolerant and not recipe.train and not has_parameters(graph, metadata.parameters):
        return (), ()
    known = {"constants": metadata.constants, "scalars": metadata.parameters, "losses": losses}
    return chosen(graph, recipe.train, frozen, **known)


def _is_own(loss: str | OwnLoss) -> bool:
    """True if the loss may bring parameters and values of any name."""
    return not isinstance(loss, str) or loss.endswith(".onnx")


_FED = ("learning_rate", "params", "gradients")  # what every optimizer model takes


def _optimizer(recipe: Recipe) -> Graph | None:
    """The optimizer model. Raises BadInput with everything that is wrong with it."""
    given, options = recipe.optimizer, recipe.optimizer_options
    if given in ("", "none"):
        if ignored := [option for option, value in vars(options).items() if value is not None]:
            raise BadInput("\n".join(f"{option} does nothing without an optimizer." for option in ignored))
        return None
    if isinstance(given, str) and not given.endswith(".onnx"):
        return optimizer_graph(given, options)
    graph = given
    if isinstance(graph, str):
        path = Path(graph)
        data = read_file(path, "Give the ONNX file of the optimizer.")
        graph = replace(read_graph(data, path), source="optimizer_model.onnx")
    told = given if isinstance(given, str) else "the optimizer"
    findings = []
    if lacking := [n for n in _FED if n not in graph.inputs and n not in graph.sequences]:
        findings.append(
            f"{told}: it is no optimizer model, which takes {', '.join(_FED)}, and moments; "
            f"{', '.join(lacking)}: not there."
        )
    if isinstance(given, str):
        findings += [
            f"{told}: {option} does nothing with an optimizer model. Write it into the model."
            for option, value in vars(options).items()
            if value is not None
        ]
    if findings:
        raise BadInput("\n".join(findings))
    return graph


def free_dimensions(graph: Graph) -> tuple[str, ...]:
    """The names of the free dimensions of a graph's inputs."""
    return tuple(sorted({n for t in graph.inputs.values() for d in t.shape or () for n in symbols_in(d)}))


def fixable(graph: Graph) -> tuple[str, ...]:
    """The names that a recipe may fix a size of: free dimensions, and inputs that are a single number."""
    return (*free_dimensions(graph), *(n for n, t in graph.inputs.items() if is_single_number(t)))


def _unknown_sizes(model: Source, recipe: Recipe) -> Iterator[str]:
    """Sizes given to dimensions that no input has."""
    free = fixable(model.graph)
    for name in recipe.sizes:
        if name not in free:
            cure = did_you_mean(name, free) or f" The inputs have: {listed(free) or 'none'}."
            yield f"--dim {name}={recipe.sizes[name]}: {model.path}: no such free dimension.{cure}"


def _wrong_values(model: Source, recipe: Recipe, graph: Graph) -> Iterator[str]:
    """Values that the recipe names and the model does not compute."""
    computed = [n for node in graph.nodes for n in node.outputs if n]
    there = {*computed, *graph.inputs, *graph.initializers, "loss"}
    yield from _missing(model, recipe.outputs, there, computed, "to return")
    yield from _missing(model, recipe.stops, set(computed), computed, "to stop gradients at")


def _missing(
    model: Source, names: Sequence[str], there: Collection[str], computed: Sequence[str], use: str
) -> Iterator[str]:
    for name in names:
        if name not in there:
            cure = did_you_mean(name, computed) or f" The nodes compute: {listed(computed)}."
            yield f"{model.path}: {name}: no such value {use}.{cure}"
