"""Equal lowerings: the same numbers whatever comes, chosen by the bytes of the whole library or by the user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import trainers
from authored import source
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`
from places import GOLDEN, ROOT
from planned_models import compiled

from minbuild.authoring import Recipe, artifacts_of
from minbuild.codegen.lowering_choice import choose_lowerings
from minbuild.errors import BadInput
from minbuild.ir import ElementType, Node
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops import registry
from minbuild.ops.core.definition import KernelCall
from minbuild.ops.core.definition import TestCase as Case
from minbuild.options.build_options import COMPILED, BuildOptions, in_profile
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel, replan
from minbuild.planning.step_time import step_seconds
from minbuild.verify.differential import NotEqual, differences, prove_equal, run_script, seeded_script

REGISTRY = registry()
EQUALS = {equal.name: equal for equal in REGISTRY.equals}
REPLACED = [(name, function) for name, equal in EQUALS.items() for function in equal.replaces]
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 1.0, -1.0])
OPERATORS = {  # of kernels whose operator is called otherwise
    "average_pool": ":AveragePool",
    "average_pool_grad": "minbuild:SumPoolGrad",
    "gemm_packed": ":Gemm",
    **{f: f"com.microsoft:{f.title().replace('_', '')}" for f in ("relu_grad", "sigmoid_grad", "tanh_grad")},
}
PRODUCTS = ("gemm", "gemm_packed", "conv")  # of matrices, where special values need shapes of their own
WHOLE = ((2, 3, 5, 7), (1, 4, 3, 1), (2, 2, 4, 4), (3, 2, 6), (1, 2, 3, 2, 5))  # pooled in one window


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> trainers.Library:
    stems = {
        REGISTRY.stems[f] for e in EQUALS.values() for f in (*e.replaces, *(k.function for k in e.kernels))
    }
    everything = trainers.everything_of(stems, REGISTRY)
    return trainers.library_of(everything, REGISTRY, tmp_path_factory.mktemp("library"))


def _numbers(array: np.ndarray) -> bytes:
    """Bits, but that any NaN is one, and any zero."""
    return np.where(np.isnan(array), np.nan, array + 0).astype(array.dtype).tobytes()


def _applications(function: str) -> Iterator[trainers.OneNode]:
    """Of an operator with that kernel: its own cases, then values that are special, or windows of whole planes."""
    random = np.random.default_rng(3)
    if function == "accumulate":
        one = trainers.one_node(REGISTRY.ops[":Sign"], Case("a gradient", (SPECIAL,), {}))
        yield trainers.with_gradients(one, {"y0": SPECIAL.shape}, ElementType.FLOAT)
        return
    op = REGISTRY.ops[OPERATORS.get(function, f":{function.title()}")]
    assert op.cases is not None
    cases = [c for c in op.cases(random) if all(x is None or x.size for x in c.inputs)]
    if function in PRODUCTS:
        cases += _special_products(function, random)
    elif function == "average_pool":
        cases += [Case(f"{s}", (random.standard_normal(s),), {"kernel_shape": s[2:]}) for s in WHOLE]
    elif function == "gather":
        cases += _wide_slices(random)
    elif function != "average_pool_grad":
        pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
        cases.append(Case("special", tuple(pairs.T[: len(cases[0].inputs)]), {}))
    for case in cases:
        for dtype in (np.float32, np.float64):
            yield trainers.one_node(op, case, dtype)
    if function == "average_pool_grad":
        yield from map(_pooled_there_and_back, WHOLE)
    if function == "conv":
        yield from _convolution_gradients(random)
    if function in ("gemm", "gemm_packed"):
        yield from _added_products(random)


def _special_products(function: str, random: np.random.Generator) -> Iterator[Case]:
    """A few special values in operands that are summed over more than one panel of a product, and in the bias."""
    for depth in (3, 90, 300):
        shapes = (
            ((5, depth), (depth, 7), (7,)) if function != "conv" else ((2, depth, 9), (7, depth, 1), (7,))
        )
        arrays = [random.standard_normal(shape) for shape in shapes]
        yield Case(f"{depth} deep", tuple(arrays), {})
        for array in arrays:
            array.ravel()[random.integers(0, array.size, 5)] = random.choice(SPECIAL, 5)
        yield Case(f"{depth} deep, special", tuple(arrays), {})


def _wide_slices(random: np.random.Generator) -> Iterator[Case]:
    """Of eight bytes, along each axis, single elements too."""
    numbers = random.integers(-(2**62), 2**62, (5, 4, 3))
    for axis in range(3):
        for index in (np.int32, np.int64):
            yield Case(f"axis {axis}", (numbers, np.array([[0, 2], [-1, 1]], index)), {"axis": axis})
    yield Case("special", (SPECIAL, np.arange(-12, 12)), {})


def _convolution_gradients(random: np.random.Generator) -> Iterator[trainers.OneNode]:
    """Both gradients of convolutions of single elements, that of the weights also added to another."""
    op = REGISTRY.ops["com.microsoft:ConvGrad"]
    for images, channels, filters, plane in (
        (1, 1, 1, (1,)),
        (3, 5, 4, (70,)),
        (2, 24, 19, (7, 3)),
        (4, 80, 3, (1, 1)),
    ):
        shapes = (
            (images, filters, *plane),
            (images, channels, *plane),
            (filters, channels, *(1 for _ in plane)),
        )
        case = Case("gradients", tuple(random.standard_normal(s) for s in shapes), {}, outputs=2)
        one = trainers.one_node(op, case)
        yield one
        yield trainers.with_gradients(one, {"y1": shapes[2]}, ElementType.FLOAT)


def _added_products(random: np.random.Generator) -> Iterator[trainers.OneNode]:
    """Products that are added to a gradient, with a factor and without."""
    for alpha in (1.0, 0.3):
        arrays = random.standard_normal((90, 33)), random.standard_normal((90, 21))
        one = trainers.one_node(REGISTRY.ops[":Gemm"], Case("added", arrays, {"transA": 1, "alpha": alpha}))
        yield trainers.with_gradients(one, {"y0": (33, 21)}, ElementType.FLOAT)


def _pooled_there_and_back(shape: tuple[int, ...]) -> trainers.OneNode:
    """The gradient of a mean over whole planes, of which the mean itself is the gradient that comes in."""
    x = np.random.default_rng(5).standard_normal(shape)
    one = trainers.one_node(REGISTRY.ops[":AveragePool"], Case("pool", (x,), {"kernel_shape": shape[2:]}))
    (pool,) = one.training.nodes
    back = Node(
        "AveragePoolGrad",
        "",
        9,
        "back",
        ("y0",),
        ("dx",),
        {**pool.attributes, "pads": (0, 0) * len(shape[2:])},
    )
    graph = replace(one.training, nodes=(pool, back), outputs=("dx",))
    return replace(one, artifacts=replace(one.artifacts, training=graph))


@pytest.mark.parametrize(("name", "function"), REPLACED)
def test_equal_lowerings_compute_the_same_numbers(
    name: str, function: str, library: trainers.Library
) -> None:
    other, replaced = REGISTRY.with_lowerings((EQUALS[name],)), 0
    for one in _applications(function):
        plans = [trainers.plan_of(one.artifacts, each) for each in (REGISTRY, other)]
        held = {kernel.function for kernel in plans[0].kernels}
        if function not in held or plans[0].kernels == plans[1].kernels:
            continue
        ours, theirs = (trainers.run(library, plan, one) for plan in plans)
        assert ours.keys() == theirs.keys()
        assert all(_numbers(ours[n]) == _numbers(theirs[n]) for n in ours)
        replaced += 1
    assert replaced


def _smallest(folder: str) -> tuple[CompiledModel, BuildOptions]:
    options = replace(in_profile("smallest"), flavor=COMPILED)
    return compile_model(
        GOLDEN / folder, {}, {}, options=PlanOptions(kernels=KernelChoice(packs=False), kernel_names=False)
    ), options


class _Sizer:
    """Bytes by the functions of kernels, where links would take too long."""

    target, targets = "paper", ("paper",)

    def __init__(self, **bytes_of: int) -> None:
        self.bytes_of, self.built = bytes_of, 0

    def loaded_bytes(self, models: tuple[CompiledModel, ...], options: BuildOptions) -> int:
        self.built += 1
        held = {kernel.function for m in models for kernel in m.plan.kernels}
        return sum(self.bytes_of.get(function, 0) for function in held)


def _chosen(folder: str, sizer: _Sizer, **options: object) -> tuple[set[str], tuple[str, ...]]:
    """Names of the lowerings that the smallest library takes, and the notes."""
    model, smallest = _smallest(folder)
    found = choose_lowerings((model,), replace(smallest, **options), sizer)  # type: ignore[arg-type]
    return {equal.name for equal in found.models[0].registry.lowerings}, found.notes


def test_what_is_smaller_is_taken_and_what_is_not_is_told() -> None:
    """`bce` has add, sub, mul, div, neg and gradients of sigmoid and tanh; nothing is accumulated or clipped."""
    own = {"add": 100, "sub": 100, "mul": 100, "tanh_grad": 100}
    names, notes = _chosen("bce", _Sizer(**own, merged=250))
    assert names == {"merged-elementwise"} and notes[0].startswith(
        "One kernel of elementwise functions saves 150 B on paper: library and plan 250 B, "
        "400 B without; a step takes 1."
    )
    assert notes[1].startswith("Choosing between equal lowerings took 2 links and ") and len(notes) == 2
    names, notes = _chosen("bce", _Sizer(**own, merged=450))
    assert not names and notes[0] == (
        "One kernel of elementwise functions would take 50 B more on paper, and is left: library and plan 450 B "
        "against 400 B."
    )


def test_the_better_of_two_that_exclude_each_other_is_taken() -> None:
    """`residual` has Relu, its gradient and Clip: Relu may be Clip, or merged with its gradient and Add."""
    sizes = {"relu": 50, "relu_grad": 50, "add": 50, "clip": 60}
    assert _chosen("residual", _Sizer(**sizes, merged=120))[0] == {"relu-by-clip"}
    names, notes = _chosen("residual", _Sizer(**sizes, merged=60))
    assert names == {"merged-elementwise"}
    assert [n for n in notes if n.startswith("Relu by Clip")] == []  # nothing is left that it replaces


def test_what_needs_a_kernel_is_tried_when_another_lowering_brought_it() -> None:
    """No product of `residual` is a contraction before convolutions of single elements are."""
    names, notes = _chosen("residual", _Sizer(gemm=50, contraction=-70, clip=900))
    assert names == {"convolution-by-contraction", "gemm-by-contraction"}
    assert sum(note.startswith("Choosing between equal lowerings took") for note in notes) == 1


def test_users_force_a_lowering_or_leave_it() -> None:
    sizer = _Sizer(merged=450)
    names, notes = _chosen("bce", sizer, equal_lowerings=("merged-elementwise",))
    assert (
        names == {"merged-elementwise"} and "takes 450 B more on paper, as --equal-lowerings asks" in notes[0]
    )
    untouched = _Sizer(add=900)
    names, notes = _chosen("bce", untouched, equal_lowerings=("no-merged-elementwise",))
    assert not names and not notes and untouched.built == 0
    names, notes = _chosen("bce", untouched, lowerings="direct", equal_lowerings=("merged-elementwise",))
    assert names == {"merged-elementwise"} and "saves 900 B" in notes[0]
    names, notes = _chosen("bce", untouched, lowerings="direct", equal_lowerings=("relu-by-clip",))
    assert not names and "nothing of the models has it" in notes[0]
    for given, cure in {
        ("merged-elementwis",): "Did you mean merged-elementwise?",
        ("relu-by-clip", "no-relu-by-clip"): "leave one of them out",
    }.items():
        with pytest.raises(BadInput, match=f"--equal-lowerings .*{cure}"):
            _chosen("bce", untouched, equal_lowerings=given)


def test_without_being_asked_nothing_is_tried() -> None:
    sizer = _Sizer()
    assert _chosen("bce", sizer, lowerings="direct") == (set(), ()) and sizer.built == 0
    assert in_profile("balanced").lowerings == in_profile("fastest").lowerings == "direct"


def test_what_makes_steps_slower_than_the_profile_allows_is_left() -> None:
    model, _ = _smallest("bce")
    other = replan(model, model.registry.with_lowerings((EQUALS["merged-elementwise"],)))
    times = [step_seconds(m.plan, m.registry, m.largest) for m in (model, other)]
    percent = 100 * (times[1] / times[0] - 1)
    assert 2 < percent < 50, "the test needs limits on both sides"
    slow = _Sizer(add=900)
    names, notes = _chosen("bce", slow, lowering_time=str(int(percent)))
    assert not names and slow.built == 0, "what is not allowed needs no link"
    assert f"a step would take {times[1] / times[0]:.2f} times as long by estimate" in notes[0]
    assert _chosen("bce", slow, lowering_time=str(int(percent) + 1))[0] == {"merged-elementwise"}
    assert _chosen("bce", slow, lowering_time="none")[0] == set()
    assert _chosen("bce", slow, lowering_time="unlimited")[0] == {"merged-elementwise"}
    limits = [in_profile(name).slowest_lowering for name in ("smallest", "balanced", "fastest")]
    assert limits == [1.5, 1.1, 1.0]


def test_the_smaller_library_is_taken(minbuild: Command, tmp_path: Path) -> None:
    """And it computes what the full one computes with kernels of each operator's own."""
    folder, options = GOLDEN / "bce", ("--profile", "smallest", "--flavor", "interpreted", "--no-analysis")
    sizes = {}
    for choice in ("direct", "least"):
        out = tmp_path / choice
        ran = minbuild("reduce", folder, "--out", out, "--lowerings", choice, *options)
        assert ran.code == 0 and "PROVEN" in ran.out, ran.err
        report = json.loads((out / "report/report.json").read_text())
        target = report["targets"][0]
        plan = (out / "model/trainer.plan").read_bytes()
        sizes[choice] = target["trimmed"]["loaded"] + len(plan)
        held = json.loads((out / "manifest.json").read_text())["holds"]["kernels"]
        assert ("merged<float>" in held) == (choice == "least") == ("sub<float>" not in held)
        told = [note for note in report["model"]["notes"] if "One kernel of elementwise" in note]
        assert [note.split(" on ")[0] for note in told] == (
            [f"One kernel of elementwise functions saves {sizes['direct'] - sizes[choice]} B"]
            if choice == "least"
            else []
        )
        assert ("kernels of each operator's own" in target["verification"]["text"]) == (choice == "least")
    assert sizes["least"] < sizes["direct"]


def test_a_whole_model_trains_with_the_same_bits(tmp_path: Path) -> None:
    """And the proof compares them with the plan of before, not with itself."""
    model = compile_model(GOLDEN / "residual", {}, {})
    other = replan(model, model.registry.with_lowerings((EQUALS["relu-by-clip"],)))
    assert {k.function for k in model.plan.kernels} - {k.function for k in other.plan.kernels} == {"relu"}
    assert other.direct_plan == model.plan_bytes
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    contents = trainers.contents_of([model.plan, other.plan])
    trainers.library_of(contents, model.registry, tmp_path)
    data = next(tmp_path.iterdir()).read_bytes()
    ours, theirs = (run_script(n, script, data, m.plan_bytes, 0) for n, m in (("a", model), ("b", other)))
    assert not differences(ours, theirs)
    proof = prove_equal(script, other.plan_bytes, data, data, direct_plan=other.direct_plan)
    assert "identical bits" in proof.text

    def leaks(call: KernelCall, shape: object) -> tuple[KernelCall, ...]:
        """Clip from a little below zero."""
        (clipped,) = EQUALS["relu-by-clip"].replaces["relu"](call, lambda name: ()) or ()
        low = int(np.float32(-0.01).view(np.int32))
        return (replace(clipped, params=(low, *clipped.params[1:])),)

    wrong = replan(
        model, REGISTRY.with_lowerings((replace(EQUALS["relu-by-clip"], replaces={"relu": leaks}),))
    )
    with pytest.raises(NotEqual, match="do not compute the same"):
        prove_equal(script, wrong.plan_bytes, data, data, direct_plan=wrong.direct_plan)


def test_products_of_all_kinds_by_one_kernel_train_with_the_same_bits(tmp_path: Path) -> None:
    """`residual` has Gemm with a bias, and a Conv of single elements among others."""
    model = compile_model(GOLDEN / "residual", {}, {})
    by_one = tuple(EQUALS[name] for name in ("convolution-by-contraction", "gemm-by-contraction"))
    other = replan(model, model.registry.with_lowerings(by_one))
    held = {k.function for k in other.plan.kernels}
    assert {"conv", "contraction", "add"} <= held and "gemm" not in held
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    trainers.library_of(trainers.contents_of([model.plan, other.plan]), model.registry, tmp_path)
    data = next(tmp_path.iterdir()).read_bytes()
    ours, theirs = (run_script(n, script, data, m.plan_bytes, 0) for n, m in (("a", model), ("b", other)))
    assert not differences(ours, theirs)


def test_calls_in_place_of_others_have_equals_too() -> None:
    """The bias of a Gemm is an Add, which is one of those that are merged."""
    model, _ = _smallest("residual")
    chosen = (EQUALS["gemm-by-contraction"], EQUALS["merged-elementwise"])
    for lowerings in (chosen, chosen[::-1]):
        held = {k.function for k in replan(model, model.registry.with_lowerings(lowerings)).plan.kernels}
        assert {"contraction", "merged"} <= held and not {"gemm", "add"} & held


def _by_parts(whole: trainers.OneNode, *parts: Node) -> trainers.OneNode:
    graph = replace(whole.training, nodes=parts)
    return replace(whole, artifacts=replace(whole.artifacts, training=graph))


def _of_both(
    ways: tuple[trainers.OneNode, ...], folder: Path
) -> tuple[list[dict[str, np.ndarray]], list[int]]:
    """Results of each, and bytes of a library for it."""
    results, sizes = [], []
    for i, one in enumerate(ways):
        plan = trainers.plan_of(one.artifacts, REGISTRY)
        (folder / f"{i}").mkdir()
        library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, folder / f"{i}")
        results.append(trainers.run(library, plan, one))
        sizes.append(sum(path.stat().st_size for path in (folder / f"{i}").iterdir()))
    return results, sizes


def test_softmax_cross_entropy_from_parts_rounds_otherwise(tmp_path: Path) -> None:
    """So that it is none of the equals, as the guide says."""
    random = np.random.default_rng(1)
    inputs = 3 * random.standard_normal((1000, 10)), random.integers(0, 10, 1000)
    case = Case("fused", inputs, {"reduction": "none"}, outputs=2)
    whole = trainers.one_node(REGISTRY.ops[":SoftmaxCrossEntropyLoss"], case)
    logarithm = Node("LogSoftmax", "", 13, "logarithms", ("x0",), ("y1",), {"axis": 1})
    loss = Node("NegativeLogLikelihoodLoss", "", 13, "loss", ("y1", "x1"), ("y0",), {"reduction": "none"})
    (ours, theirs), _ = _of_both((whole, _by_parts(whole, logarithm, loss)), tmp_path)
    differ = np.mean(ours["y0"] != theirs["y0"])
    assert 0 < differ < 0.5, f"{differ:.1%} of losses differ"
    np.testing.assert_allclose(ours["y0"], theirs["y0"], rtol=0, atol=2e-6)


def test_the_gradient_of_relu_by_where_is_equal_and_larger(tmp_path: Path) -> None:
    """So that it is none of the equals, as the guide says."""
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL]).T
    whole = trainers.one_node(REGISTRY.ops["com.microsoft:ReluGrad"], Case("special", tuple(pairs), {}))
    nodes = (
        Node("Less", "", 13, "positive", ("zero", "x1"), ("mask",), {}),
        Node("Where", "", 16, "select", ("mask", "x0", "zero"), ("y0",), {}),
    )
    parts = _by_parts(whole, *nodes)
    graph = replace(parts.training, initializers={"zero": np.zeros((), np.float32)})
    parts = replace(parts, artifacts=replace(parts.artifacts, training=graph))
    (ours, theirs), (own, other) = _of_both((whole, parts), tmp_path)
    assert _numbers(ours["y0"]) == _numbers(theirs["y0"])
    assert own < other


def test_one_gather_serves_elements_of_two_widths(tmp_path: Path) -> None:
    """Rows of an embedding, and positions in whole numbers."""
    random = np.random.default_rng(2)
    rows, numbers = random.standard_normal((9, 5)).astype(np.float32), random.integers(0, 2**40, 9)
    whole = trainers.one_node(
        REGISTRY.ops[":Gather"], Case("rows", (rows, random.integers(0, 9, (3, 2))), {}), np.float32
    )
    graph = whole.training
    twice = replace(
        graph,
        nodes=(*graph.nodes, Node("Gather", "", 13, "positions", ("numbers", "x1"), ("y1",), {})),
        outputs=("y0", "y1"),
        initializers={"numbers": numbers},
    )
    both = replace(whole, artifacts=replace(whole.artifacts, training=twice))
    results = []
    for names in ((), ("gather-by-words",), ("gather-by-bytes",)):
        chosen = REGISTRY.with_lowerings(EQUALS[name] for name in names)
        plan = trainers.plan_of(both.artifacts, chosen)
        assert [k.types[0] for k in plan.kernels if k.function == "gather"] == {
            (): ["uint32_t", "uint64_t"],
            ("gather-by-words",): ["uint32_t"],
            ("gather-by-bytes",): ["uint8_t"],
        }[names]
        results.append(
            trainers.run(trainers.library_of(trainers.contents_of([plan]), chosen, tmp_path), plan, both)
        )
    assert all(_numbers(r[n]) == _numbers(results[0][n]) for r in results for n in ("y0", "y1"))
    assert (results[0]["y1"] == numbers[both.feeds[1]]).all()


def test_reports_list_temporaries_that_a_gather_writes_in_pieces() -> None:
    text = "m (int64[n] x) => (double[n,2] y) { e = Gather (table, x) y = MatMul (e, w) }"
    model = source(text, {"table": np.ones((5, 3)), "w": np.ones((3, 2))})
    made = artifacts_of(model, Recipe(loss="mse", optimizer="sgd"), REGISTRY)
    for name in ("gather-by-words", "gather-by-bytes"):
        model = replan(compiled(made, REGISTRY), REGISTRY.with_lowerings((EQUALS[name],)))
        (listed,) = [asdict(arena) for arena in model.arenas if arena.graph == "train"]
        assert "e" in [tensor["name"] for tensor in listed["live"]]


def test_the_guide_names_every_lowering_and_what_it_may_cost() -> None:
    guide = (ROOT / "docs/guides/shrink.md").read_text()
    assert all(f"`{name}`" in guide and equal.title in guide for name, equal in EQUALS.items())
