"""Contracts of passes: what each requires, ensures and preserves, and that a breach of it is found."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from linear_model import BATCH, FLOAT, INT64, linear, lowered
from procedures import call, procedure_of

from minbuild.ir import (
    Call,
    ElementType,
    Procedure,
    Program,
    Role,
    TensorType,
    Value,
)
from minbuild.ops import Registry, registry
from minbuild.passes import manager
from minbuild.passes.contracts import ContractViolation, Pass, Relation, check, check_relations
from minbuild.passes.invariants import (
    CALLS_REPEATED,
    NARROW_INDICES,
    NO_MORE_CALLS,
    NO_NEW_CALLS,
    SAME_CALLS,
    SAME_INTERFACE,
    SAMPLES_IN_LOOPS,
)
from minbuild.passes.manager import CHECKS, PASSES, optimize, run_pass

pytestmark = pytest.mark.unit


def without_first(procedure: Procedure, registry: Registry) -> Procedure:
    return replace(procedure, calls=procedure.calls[1:])


def repeated(procedure: Procedure, registry: Registry) -> Procedure:
    return replace(procedure, calls=(procedure.calls[0], *procedure.calls))


def self_aliased(procedure: Procedure, registry: Registry) -> Procedure:
    return replace(procedure, alias={**procedure.alias, "h": "y", "y": "h"})


def untyped(procedure: Procedure, registry: Registry) -> Procedure:
    return replace(procedure, values={n: v for n, v in procedure.values.items() if n != "h"})


def overlapping(procedure: Procedure, registry: Registry) -> Procedure:
    return replace(procedure, loops=(range(0, 2), range(1, 3)))


BROKEN = {
    without_first: r"values are written before they are read: train: node 'Relu_y' \(:Relu\) reads 'h'",
    repeated: r"every temporary has one writer: train: node 'Gemm_h' \(:Gemm\) writes 'h' a second time",
    self_aliased: "no value is an alias of itself: train: 'h'",
    untyped: "every name has a type: train: 'h'",
    overlapping: "loops are disjoint and short: train: the loop over calls 1 to 2",
}


@pytest.mark.parametrize("rewrite", BROKEN, ids=lambda rewrite: rewrite.__name__)
def test_a_pass_that_breaks_an_invariant_is_caught(rewrite: Callable[..., Procedure]) -> None:
    def function(program: Program, operators: Registry) -> Program:
        return replace(program, procedures=tuple(rewrite(p, operators) for p in program.procedures))

    with pytest.raises(ContractViolation, match=f"^after {rewrite.__name__}: {BROKEN[rewrite]}"):
        run_pass(Pass(rewrite.__name__, function, requires=(), ensures=()), lowered(linear()), registry())


def test_passes_require_what_earlier_ones_ensure() -> None:
    """Each required invariant is one that lowering alone does not give, and that an earlier pass ensures."""
    ensured: set[str] = set()
    for each in PASSES:
        assert {i.name for i in each.requires} <= ensured, each.name
        ensured |= {i.name for i in each.ensures}
    late = next(each for each in PASSES if each.name == "sink_code")
    with pytest.raises(
        ContractViolation, match="before sink_code: views are aliases: train: node 'Identity_w_grad'"
    ):
        run_pass(late, lowered(linear()), registry())


def test_contracts_are_checked_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ[CHECKS] == "1"
    bad = Pass("bad", lambda program, operators: replace(program, procedures=()), requires=(), ensures=())
    monkeypatch.setattr(manager, "PASSES", (bad,))
    with pytest.raises(ContractViolation, match="across bad: procedure 'train' is lost"):
        optimize(lowered(linear()), registry())
    monkeypatch.delenv(CHECKS)
    assert optimize(lowered(linear()), registry()).procedures == ()


def test_every_pass_ensures_something() -> None:
    assert not [each.name for each in PASSES if not each.ensures]


def replaced(calls: tuple[Call, ...], index: int, **changes: object) -> tuple[Call, ...]:
    return (*calls[:index], replace(calls[index], **changes), *calls[index + 1 :])  # type: ignore[arg-type]


DIFFERENCES: dict[str, tuple[Relation, Callable[[Procedure], Procedure], str]] = {
    "an output": (
        SAME_INTERFACE,
        lambda p: replace(p, outputs=()),
        "its inputs or outputs are others",
    ),
    "a type": (
        SAME_INTERFACE,
        lambda p: replace(
            p, values={**p.values, "w": replace(p.values["w"], type=TensorType(FLOAT, (4, 3)))}
        ),
        "'w' was PARAMETER",
    ),
    "a call lost": (SAME_CALLS, lambda p: replace(p, calls=p.calls[1:]), "lost:"),
    "a call changed": (SAME_CALLS, lambda p: replace(p, calls=replaced(p.calls, 0, node="other")), "new:"),
    "a call added": (
        NO_NEW_CALLS,
        lambda p: replace(p, calls=replaced(p.calls, 0, inputs=("x", "x"))),
        "new:",
    ),
    "more calls": (NO_MORE_CALLS, lambda p: replace(p, calls=(*p.calls, p.calls[0])), ".* calls became"),
    "a foreign call": (
        CALLS_REPEATED,
        lambda p: replace(p, calls=(*p.calls, replace(p.calls[0], node="other"))),
        "foreign:",
    ),
    "a call no longer there": (CALLS_REPEATED, lambda p: replace(p, calls=p.calls[1:]), "lost:"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_that_a_pass_may_not_make_is_caught(name: str) -> None:
    relation, rewrite, text = DIFFERENCES[name]
    program = lowered(linear())
    changed = replace(program, procedures=tuple(map(rewrite, program.procedures)))
    with pytest.raises(ContractViolation, match=f"here: {relation.name}: train: {text}"):
        check_relations(program, changed, (relation,), "here")
    check_relations(program, program, (relation,), "here")


HALF = ElementType.FLOAT16


SIZES = Value("n", TensorType(INT64, (1,)), Role.CONSTANT, np.array([BATCH], object))


POOL = procedure_of(
    (
        call(":MaxPool", "x", "p,i", kernel_shape=(2, 2), strides=(2, 2)),
        call(":MaxPoolGrad", "p,i", "y", kernel_shape=(2, 2), strides=(2, 2)),
    ),
    {
        "x": TensorType(FLOAT, (1, 1, 4, 4)), "p": TensorType(FLOAT, (1, 1, 2, 2)),
        "i": TensorType(INT64, (1, 1, 2, 2)), "y": TensorType(FLOAT, (1, 1, 4, 4)),
    },
)  # fmt: skip


CUT_OFF = procedure_of(
    (
        call("com.microsoft:FakeQuant", "x,s,s", "q,m", quant_min=0, quant_max=9),
        call("com.microsoft:FakeQuantGrad", "q,m", "y"),
    ),
    {
        **dict.fromkeys("xqy", TensorType(FLOAT, (3, 4))), "s": TensorType(FLOAT, ()),
        "m": TensorType(ElementType.BOOL, (3, 4)),
    },
)  # fmt: skip


ADDED = procedure_of((call(":Add", "x,n", "y"),), dict.fromkeys("xy", TensorType(INT64, (1,))))


BEFORE = {  # a procedure that breaks what a pass ensures
    "materialize_symbolic_dims": (
        replace(ADDED, values={**ADDED.values, "n": SIZES}),
        "reads 'n', \\[batch\\], as data",
    ),
    "legalize_half_precision": (
        procedure_of((call(":Gemm", "x,x", "y"),), dict.fromkeys("xy", TensorType(HALF, (4, 4)))),
        "no kernel for float16",
    ),
    "narrow_pool_indices": (POOL, "writes 'i' of int64"),
    "pack_quantization_masks": (CUT_OFF, "writes a byte for each element of 'm'"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_pass_establishes_what_it_ensures(name: str) -> None:
    each = next(p for p in PASSES if p.name == name)
    procedure, text = BEFORE[name]
    program = Program((procedure,), (), 0, ())
    with pytest.raises(ContractViolation, match=f"{each.ensures[0].name}: train: .*{text}"):
        check(program, registry(), each.ensures, "before")
    made = each.function(program, registry())
    check(made, registry(), each.ensures, "after")
    assert made != program


def test_a_sample_outside_of_loops_is_caught() -> None:
    tensor = TensorType(FLOAT, (1, 4))
    relu = procedure_of((call(":Relu", "x one", "y"),), {"x": tensor, "y": tensor})
    one = replace(relu.values["x"], name="x one", role=Role.TEMPORARY, sample=True)
    relu = replace(relu, values={**relu.values, "x one": one}, alias={"x one": "x"})
    assert [*SAMPLES_IN_LOOPS.violations(relu, registry())] == [
        "node ':Relu_y' (:Relu) touches one sample, 'x one', outside of loops"
    ]
    assert not [*SAMPLES_IN_LOOPS.violations(replace(relu, loops=(range(0, 1),)), registry())]


def test_pooling_without_indices_has_none_to_narrow() -> None:
    alone = replace(POOL, calls=(replace(POOL.calls[0], outputs=("p",)),))
    assert not [*NARROW_INDICES.violations(alone, registry())]


def test_rewrites_ask_effects_for_owners() -> None:
    """Aliases are followed in one place: a rewrite that does so by itself may miss those that it has just made."""
    folder = Path(manager.__file__).parent / "rewrite"
    modules = sorted(folder.glob("*.py"))
    assert len(modules) > 10
    assert not [p.name for p in modules if re.search(r"import .*\broot\b", p.read_text("utf-8"))]


def test_a_pass_without_a_contract_is_none() -> None:
    """Invariants are said even where there are none, so that leaving them out is no oversight."""
    with pytest.raises(TypeError, match="requires"):
        Pass("silent", lambda program, operators: program)  # type: ignore[call-arg]
    for maker in (Pass, manager._each):
        parameters = inspect.signature(maker).parameters
        assert all(parameters[name].default is inspect.Parameter.empty for name in ("requires", "ensures"))


@pytest.mark.parametrize("name", ["eliminate_views", "fuse_gradient_accumulation"])
def test_a_pass_that_does_nothing_breaks_what_it_should_ensure(name: str) -> None:
    number, each = next((i, e) for i, e in enumerate(PASSES) if e.name == name)
    program = lowered(linear())
    for earlier in PASSES[:number]:
        program = run_pass(earlier, program, registry())
    with pytest.raises(ContractViolation, match=f"after {name}: {each.ensures[0].name}"):
        run_pass(replace(each, function=lambda given, operators: given), program, registry())
