"""Plans with several free dimensions, compiled in: sizes and places are computed on the device, with the same bits and
errors as by a library that reads the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import call
from onnx import TensorProto, helper, numpy_helper

from minbuild.codegen.compiled_plan import compile_plan
from minbuild.codegen.library_builder import build_checked
from minbuild.ir import ElementType, Procedure
from minbuild.options.build_options import COMPILED, in_profile
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import EXPRESSIONS, decode_plan, encode_plan
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import EVAL, TRAIN, Library, Session, TrainerError, arena_size
from minbuild.verify.differential import prove_equal, seeded_script

WORDS, WIDE = 11, 8


def attention() -> onnx.ModelProto:
    """A small classifier of texts: attention over words, whose number is as free as that of texts."""
    random = np.random.default_rng(4)
    weights = {
        "table": (WORDS, WIDE),
        "query": (WIDE, WIDE),
        "key": (WIDE, WIDE),
        "out": (3, WIDE),
        "bias": (3,),
    }
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["x"]),
        helper.make_node("MatMul", ["x", "query"], ["q"]),
        helper.make_node("MatMul", ["x", "key"], ["k"]),
        helper.make_node("Transpose", ["k"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "x"], ["mixed"]),
        helper.make_node("Add", ["x", "mixed"], ["y"]),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["mean", "out", "bias"], ["classes"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", "time"])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 3])],
        [
            numpy_helper.from_array((random.standard_normal(shape) / 3).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    onnx.save(attention(), folder / "model.onnx")
    said = call("artifacts", folder / "model.onnx", "--out", folder / "artifacts", "--loss", "cross-entropy")
    assert said.returncode == 0, said.stderr
    return folder / "artifacts"


@pytest.fixture(scope="module")
def model(artifacts: Path) -> CompiledModel:
    made = compile_model(artifacts, {}, {})
    assert made.plan.symbols == ("batch", "time")
    return made


def library(
    model: CompiledModel, folder: Path, flavor: str, profile: str = "balanced"
) -> tuple[Library, bytes]:
    options = replace(in_profile(profile), flavor=flavor)
    contents = contents_of((model,), build_options=options)
    built = build_checked(contents, model.registry, host_target(), find_toolchain(build_options=options))
    path = folder / f"{flavor}-{profile}"
    path.write_bytes(built.built.shared)
    return Library(path), built.built.shared


def feeds(procedure: Procedure, texts: int, words: int) -> list[np.ndarray]:
    random = np.random.default_rng(texts * 100 + words)
    sizes = {"batch": texts, "time": words}
    arrays = []
    for name in procedure.inputs:
        tensor = procedure.values[name].type
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in tensor.shape or ()]
        assert tensor.element is ElementType.INT64
        arrays.append(random.integers(0, 3, shape))
    return arrays


@pytest.mark.parametrize("profile", ["balanced", "smallest"])
def test_sizes_that_differ_and_change_give_the_same_bits(
    model: CompiledModel, tmp_path: Path, profile: str
) -> None:
    (reads, full), (has, trimmed) = (
        library(model, tmp_path, flavor, profile) for flavor in ("interpreted", COMPILED)
    )
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    prove_equal(script, model.plan_bytes, trimmed, full, compiled=True)
    sessions = [
        Session(opened, plan, model.checkpoint, [6, 9])
        for opened, plan in ((reads, model.plan_bytes), (has, b""))
    ]
    train, evaluate = model.program.procedures[:2]
    for texts, words in ((4, 7), (1, 9), (6, 1), (6, 9), (2, 3)):
        results = []
        for session in sessions:
            results.append(session.run(TRAIN, feeds(train, texts, words)))
            session.optimizer_step()
            results[-1] += session.run(EVAL, feeds(evaluate, words, texts))
        assert [r.tobytes() for r in results[0]] == [r.tobytes() for r in results[1]]
    for session in sessions:
        assert session.names(TRAIN, False) == sessions[0].names(TRAIN, False)


def test_memory_is_what_a_library_takes_that_reads(model: CompiledModel, tmp_path: Path) -> None:
    """Neither more for temporaries, nor less at any sizes."""
    (reads, _), (has, _) = (library(model, tmp_path, flavor) for flavor in ("interpreted", COMPILED))
    most = [(1, 1), (1, 40), (40, 1), (7, 33), (32, 64)]
    ours = [arena_size(has, b"", list(sizes)) for sizes in most]
    theirs = [arena_size(reads, model.plan_bytes, list(sizes)) for sizes in most]
    assert len({a - b for a, b in zip(ours, theirs, strict=True)}) == 1
    assert ours[0] < theirs[0]


def test_its_errors_are_those_of_a_library_that_reads(model: CompiledModel, tmp_path: Path) -> None:
    train = model.program.procedures[0]
    said: list[list[str]] = []
    for flavor in ("interpreted", COMPILED):
        opened, _ = library(model, tmp_path, flavor)
        plan = b"" if flavor == COMPILED else model.plan_bytes
        said.append([])
        session = Session(opened, plan, model.checkpoint, [4, 5])
        reference = session.run(TRAIN, feeds(train, 4, 5))
        words, labels = feeds(train, 4, 5)
        attempts = [
            lambda: Session(opened, plan, model.checkpoint, [4]),  # noqa: B023
            lambda: Session(opened, plan, model.checkpoint, [4, 0]),  # noqa: B023
            lambda: Session(opened, plan, model.checkpoint, [2**31 - 1, 2]),  # noqa: B023
            lambda: Session(opened, plan, model.checkpoint, [2**16, 2**16]),  # noqa: B023
            lambda: session.run(TRAIN, [words, labels[:2]]),  # noqa: B023
            lambda: session.run(TRAIN, feeds(train, 9, 9)),  # noqa: B023
            lambda: session.run(TRAIN, [words[:0], labels[:0]]),  # noqa: B023
        ]
        for attempt in attempts:
            with pytest.raises(TrainerError) as caught:
                attempt()
            said[-1].append(str(caught.value).partition("needs")[0])
        again = session.run(TRAIN, [words, labels])
        assert [a.shape for a in again] == [r.shape for r in reference], "sizes are those of before"
    assert said[0] == said[1]


def test_values_are_those_of_the_plan(model: CompiledModel) -> None:
    """Every size that a tensor has is what the plan's expression gives, at several sizes."""
    contents = contents_of((model,), build_options=replace(in_profile("smallest"), flavor=COMPILED))
    tables = compile_plan(contents.compiled_plan, contents.kernels, kernel_names=False)
    assert tables["values"] < len(decode_plan(model.plan_bytes)["exprs"]) and tables["free_dims"] == 0
    for sizes in ((3, 5), (1, 1), (17, 4)):
        numbers = [*sizes, *[0] * len(tables["operations"]), *tables["columns"]["dims"]]
        for i, (a, b, op) in enumerate(tables["operations"], len(sizes)):
            numbers[i] = _applied(EXPRESSIONS[op], numbers[a], numbers[b])
        data = encode_plan(model.plan, dict(zip(model.plan.symbols, sizes, strict=True)))
        plan = decode_plan(data)
        wanted: list[int] = []
        for a, b, op in plan["exprs"].tolist():
            name = EXPRESSIONS[op]
            wanted.append(
                a
                if name == "Constant"
                else sizes[a]
                if name == "Symbol"
                else _applied(name, wanted[a], wanted[b])
            )
        assert numbers[tables["peak"]] == wanted[int(plan["arena"])]
        assert set(numbers[: tables["values"]]) <= set(wanted) | set(sizes)


def _applied(name: str, a: int, b: int) -> int:
    return {
        "Add": a + b,
        "Multiply": a * b,
        "Divide": a // max(1, b),
        "Max": max(a, b),
        "Min": min(a, b),
        "Stack": a + -(-b // 16) * 16,
    }[name]
