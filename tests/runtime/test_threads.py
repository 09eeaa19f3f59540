"""Threads: the same bits for any number, in any pool; nothing of them outlives a call."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trainers
from case_sets import EVAL, SHARED, TRAIN, CaseSet, Trainer, load, persistent, trainer
from packed_model import packed_set
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ir import Plan
from minbuild.ops import registry
from minbuild.ops.core.definition import TestCase
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.planning.ram_budget import ram_of
from minbuild.planning.threads import MOST_THREADS, Work
from minbuild.training.library import Library, Session, TrainerError, arena_size

THREADS = 4
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> CaseSet:
    return load(packed_set(tmp_path_factory.mktemp("packed")))


@pytest.fixture(scope="module")
def built(case: CaseSet) -> Trainer:
    return trainer(case.folder, threads=THREADS)


def session(case: CaseSet, built: Trainer, **options: object) -> Session:
    return Session(built.library, built.data, case.checkpoint, **options)  # type: ignore[arg-type]


def trained(case: CaseSet, built: Trainer, **options: object) -> bytes:
    """All that persists after two steps at one size and one at another, and what the calls returned."""
    trains = session(case, built, **options)
    returned = b""
    for batch in (case.batch(0), case.batch(0), case.samples(3)):
        returned += b"".join(x.tobytes() for x in trains.run(TRAIN, batch))
        trains.optimizer_step()
        trains.lazy_reset_grad()
    returned += b"".join(x.tobytes() for x in trains.run(EVAL, case.eval_batch()))
    found = persistent(trains, built) + returned
    trains.close()
    return found


def helpers() -> int:
    """Threads of this process, once those that others have just joined are gone: Python does not wait for their end."""
    found = []
    while len(found) < 5 or len(set(found[-5:])) > 1:
        found.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return found[-1]


@pytest.fixture(scope="module")
def alone(case: CaseSet) -> bytes:
    """What the library without threads computes."""
    return trained(case, trainer(case.folder))


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 4, 99])
def test_any_number_of_threads_computes_the_same_bits(case, built, alone, threads):
    assert trained(case, built, threads=threads) == alone


def test_a_recurrent_layer_computes_the_same_bits(tmp_path):
    recurrent = load(packed_set(tmp_path, name="recurrent"))
    divided = trainer(recurrent.folder, threads=THREADS)
    assert {f"{kind}{part}_packed" for kind in ("lstm", "gru", "rnn") for part in ("", "_grad")} <= {
        k.function for k in divided.contents.kernels
    }
    assert trained(recurrent, divided, threads=3) == trained(recurrent, trainer(recurrent.folder))


def test_adapters_of_low_rank_compute_the_same_bits(tmp_path):
    adapters = load(packed_set(tmp_path, samples=5, name="adapters"))
    divided = trainer(adapters.folder, threads=THREADS)
    functions = {k.function for k in divided.contents.kernels}
    assert "contraction_packed" in functions and "contraction" not in functions  # those of rank 8 and 9, too
    assert trained(adapters, divided, threads=3) == trained(adapters, trainer(adapters.folder))


@pytest.mark.parametrize("threads", [2, 3])
def test_images_that_are_multiplied_where_they_are_compute_the_same_bits(tmp_path, threads):
    """Batches of 17 and of 3: threads take whole images where these come out even, or some of each image."""
    points = load(packed_set(tmp_path, name="points"))
    divided = trainer(points.folder, threads=THREADS)
    assert "conv_packed" in {k.function for k in divided.contents.kernels}
    assert trained(points, divided, threads=threads) == trained(points, trainer(points.folder))


def in_order(task: Callable[[int], None], count: int) -> None:
    for index in range(count):
        task(index)


def reversed_order(task: Callable[[int], None], count: int) -> None:
    for index in reversed(range(count)):
        task(index)


@pytest.mark.parametrize("pool", [in_order, reversed_order])
def test_a_pool_of_the_program_computes_the_same_bits(case, built, alone, pool):
    calls = []

    def counted(task: Callable[[int], None], count: int) -> None:
        calls.append(count)
        pool(task, count)

    assert trained(case, built, threads=3, parallel=counted) == alone
    assert calls and set(calls) <= {2, 3}  # as many members, not parts


def test_a_pool_of_real_threads_computes_the_same_bits(case, built, alone):
    with ThreadPoolExecutor(THREADS) as executor:
        assert (
            trained(case, built, parallel=lambda task, count: list(executor.map(task, range(count)))) == alone
        )


def test_work_is_divided_among_all_threads(case, built):
    """Each member of a pool that stops between parts gets some: none is left to one thread."""
    members: set[int] = set()
    meeting = threading.Barrier(2)

    def together(task: Callable[[int], None], count: int) -> None:
        def one(index: int) -> None:
            meeting.wait()
            task(index)
            members.add(index)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    session(case, built, threads=2, parallel=together).run(TRAIN, case.batch(0))
    assert members == {0, 1}


@pytest.mark.skipif(PROCESSORS < 2, reason="one processor")
def test_threads_of_the_library_do_their_share(case, built):
    """By the processor time that is not the caller's; a machine that is busy may give them some in one run of many."""
    trains = session(case, built, threads=2)
    shares = []
    while len(shares) < 30 and max(shares, default=0) < 0.2:
        own, every = time.thread_time(), time.process_time()
        trains.run(EVAL, case.eval_batch())
        own, every = time.thread_time() - own, time.process_time() - every
        shares.append((every - own) / every)
    assert max(shares) >= 0.2
    trains.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux does")
def test_no_thread_outlives_a_call(case, built):
    before = helpers()
    trains = session(case, built, threads=THREADS)
    assert helpers() == before
    for refused in (False, True):
        batch = case.batch(0)
        if refused:
            batch[1] = np.full_like(batch[1], 10**6)  # labels that are no classes
            with pytest.raises(TrainerError):
                trains.run(TRAIN, batch)
        else:
            trains.run(TRAIN, batch)
        assert helpers() == before
    trains.close()


def test_a_refused_call_changes_nothing(case, built):
    trains = session(case, built, threads=THREADS)
    trains.run(TRAIN, case.batch(0))
    before = persistent(trains, built)
    wrong = case.batch(0)
    wrong[1] = np.full_like(wrong[1], 10**6)
    with pytest.raises(TrainerError):
        trains.run(TRAIN, wrong)
    # Gradients are added to as steps go; a bad label is refused before the first.
    assert persistent(trains, built) == before


@pytest.mark.parametrize("threads", [1, THREADS])
def test_gradients_that_are_not_finite_are_named(case, built, threads):
    """Threads look at parts of them; the first and the last number count too."""
    trains = session(case, built, threads=threads)
    trained_names = [name for name in trains.parameters if trains.is_trained(name)]
    for name, place in ((trained_names[0], 0), (trained_names[-1], -1)):
        trains.lazy_reset_grad()
        trains.run(TRAIN, case.batch(0))
        trains.gradient(name).flat[place] = np.nan
        before = persistent(trains, built)
        with pytest.raises(TrainerError, match=f"not finite.*{name}"):
            trains.optimizer_step()
        assert persistent(trains, built) == before
    trains.lazy_reset_grad()
    trains.run(TRAIN, case.batch(0))
    trains.optimizer_step()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_trains_on(case, built, alone):
    """Fork between two calls: both processes go on, and compute the same."""
    trains = session(case, built, threads=THREADS)
    trains.run(TRAIN, case.batch(0))
    reads, writes = os.pipe()
    child = os.fork()
    loss = trains.run(TRAIN, case.batch(0))[0].tobytes()
    if child == 0:
        os.write(writes, loss)
        os._exit(0)
    assert os.read(reads, 64) == loss
    assert os.waitpid(child, 0)[1] == 0


def test_sessions_on_several_threads_do_not_meet(case, built, alone):
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda _: trained(case, built, threads=2), range(3)))
    assert set(found) == {alone}


def test_memory_of_a_session_includes_that_of_its_threads(case, built):
    bare = trainer(case.folder)
    sizes = [2]
    less, more = (arena_size(b.library, b.data, sizes) for b in (bare, built))
    stacks = (THREADS - 1) << 16
    assert less + stacks < more < less + stacks + THREADS * (1 << 20)


def test_a_plan_with_memory_for_one_thread_runs_too(case, built, alone):
    """A library with threads takes the plans of one without: they are not divided where there is no room."""
    assert trained(case, replace(built, data=trainer(case.folder).data)) == alone


def test_auto_takes_threads_where_the_work_of_a_step_pays(case):
    few, many = (
        compile_model(case.folder, {"batch": n}, {}, options=PlanOptions(threads="auto")).threads
        for n in (1, 256)
    )
    assert few < many == MOST_THREADS  # one sample leaves memory for fewer


def test_the_work_of_few_rows_is_the_reading_of_their_weights():
    one, many = (Work("training", "layer", "gemm_packed", n << 20, 1 << 20, divided=True) for n in (1, 64))
    assert one.time == 8 << 20 and many.time == many.count


@pytest.mark.skipif(not (SHARED / "bert_tiny").is_dir(), reason="the recorded case is not there")
def test_auto_takes_fewer_threads_where_their_memory_is_more_than_a_quarter():
    """A small transformer of fixed sizes: eight threads would take half as much RAM again as one."""

    def planned(threads: str) -> CompiledModel:
        return compile_model(SHARED / "bert_tiny", {"batch": 8}, {}, options=PlanOptions(threads=threads))

    alone, auto, most = (ram_of(m.plan, {}) for m in map(planned, ("off", "auto", "on")))
    assert planned("auto").threads == 4
    assert alone < auto <= alone * 5 // 4 < most


def plans() -> Iterator[tuple[str, int]]:
    yield from (("off", 1), ("on", MOST_THREADS), ("3", 3))


@pytest.mark.parametrize(("option", "threads"), list(plans()))
def test_the_option_says_how_many(case, option, threads):
    assert compile_model(case.folder, {}, {}, options=PlanOptions(threads=option)).threads == threads


def test_a_library_with_its_plan_compiled_in_has_threads_too(case, built, alone, tmp_path):
    contents = replace(built.contents, compiled_plan=built.data)
    library = shared_library(emit_sources(contents, registry()))
    (tmp_path / "library.so").write_bytes(library)
    compiled = replace(built, library=Library(tmp_path / "library.so"), data=b"")
    assert trained(case, compiled, threads=3) == alone


def node(key: str, *shapes: tuple[int, ...], **attributes: object) -> tuple[str, TestCase]:
    random = np.random.default_rng(2)
    return key, TestCase("", tuple(random.standard_normal(s) for s in shapes), attributes)


# Of every way to divide a call, with whether this one is.
CALLS = {
    "groups of a convolution": (
        node(":Conv", (3, 8, 40, 40), (8, 1, 3, 3), group=8, pads=(1, 1, 1, 1)),
        True,
    ),
    "a small convolution": (node(":Conv", (3, 8, 40, 40), (8, 8, 3, 3), pads=(1, 1, 1, 1)), False),
    "elements": (node(":Add", (201, 301), (201, 301)), True),
    "elements of little": (node(":Add", (21, 31), (21, 31)), False),
    "rows, with one for all": (node(":Mul", (201, 301), (301,)), True),
    "rows, with a number for each": (node(":Sub", (201, 1), (201, 301)), True),
    "rows, with a number for all": (node(":Div", (201, 301), (1,)), True),
    "rows with a last vector of their own": (node(":Softmax", (600, 67)), True),
    "planes of a pool": (node(":MaxPool", (3, 8, 40, 40), kernel_shape=(3, 3)), True),
    "slices of a gradient": (
        (
            "com.microsoft:GatherGrad",
            TestCase(
                "",
                (np.array([2000, 33]), np.arange(572) * 7 % 500 * 4, np.ones((572, 33)) / 3),
                {"axis": 0},
                constant=frozenset({0}),
            ),
        ),
        True,
    ),
    # Tiles that do not fit a part are others than those that do not fit the whole.
    "columns, with a factor": (node(":Gemm", (100, 512), (512, 100), (100, 100), alpha=0.3, beta=0.7), True),
    "rows, with a factor": (node(":Gemm", (2773, 512), (512, 16), (2773, 16), alpha=0.3), True),
    "one sum of all": (node(":ReduceSum", (201, 301), keepdims=0), False),
}


@pytest.fixture(scope="module")
def calls(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Library, dict[str, trainers.OneNode], dict[str, Plan]]:
    operators, nodes, plans = registry(), {}, {}
    for name, ((key, case), _) in CALLS.items():
        nodes[name] = trainers.one_node(operators.ops[key], case)
        lowered = lower(nodes[name].artifacts, operators, {})
        plans[name] = build_plan(optimize(lowered, operators), operators, THREADS)
    contents = replace(trainers.contents_of(plans.values()), threads=THREADS)
    return trainers.library_of(contents, operators, tmp_path_factory.mktemp("calls")), nodes, plans


@pytest.mark.parametrize("name", CALLS)
def test_parts_of_a_call_compute_the_same_bits(calls, name):
    library, nodes, plans = calls
    plan, asked, found = encode_plan(plans[name], {}), [], []

    def counted(task: Callable[[int], None], count: int) -> None:
        asked.append(count)
        reversed_order(task, count)

    for options in ({"threads": 1}, {"threads": 3, "parallel": counted}):
        found.append(Session(library, plan, None, **options).run(TRAIN, nodes[name].feeds)[0].tobytes())
    assert found[0] == found[1] and bool(asked) == CALLS[name][1]
