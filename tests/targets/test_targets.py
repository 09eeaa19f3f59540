"""Trainers of other machines, with a free batch, compute what this machine's do: step by step and as a whole.

python -m pytest -m targets -n 2 --dist loadgroup tests/targets      needs qemu-user, qemu-system-arm, node and wine
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from baselines import baseline  # noqa: E402
from case_sets import SHARED  # noqa: E402
from packed_model import PACKED, packed_artifacts  # noqa: E402
from quantized_nets import artifact_set  # noqa: E402

from minbuild import assets  # noqa: E402
from minbuild.codegen.library_builder import BuiltLibrary, build_checked  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import CompiledModel, with_dense_plans  # noqa: E402
from minbuild.planning.kernel_selection import contents_of  # noqa: E402
from minbuild.planning.plan_encoding import dense_form  # noqa: E402
from minbuild.toolchain import find_emulator, find_toolchain, host_target, parse_target, why_not_run  # noqa: E402
from minbuild.toolchain.targets import _TABLE  # noqa: E402
from minbuild.verify.cross_target import Baseline, prove_foreign  # noqa: E402

pytestmark = pytest.mark.targets

OWN = TESTS.parent / "artifacts"
EMULATED = (
    *("wasm32", "arm-linux-musleabihf", "aarch64-linux-musl", "riscv64-linux-musl"),
    *("cortex-m4f", "cortex-m7", "cortex-m55", "wasm32-relaxed-simd"),
)
# "packed" has packed products and convolutions, for which all others are too small.
CASES = ("artifacts", "packed", "lenet", "cnn_bn", "resnet8", "mobilenetv2", "lstm_cls", "bert_tiny")
# Their runs are short: they would take half the time of all.
LONG = ("packed", "threads", "resnet8", "mobilenetv2", "recurrent")
# Recurrent layers of every kind, whose products are packed.
RECURRENT = ("aarch64-linux-musl", "arm-linux-musleabihf", "wasm32")
# Weights in 4, 8 and 16 bits.
QUANTIZED = ("convolutions", "int4 convolutions", "MatMulNBits", "uint16 convolutions")
MATRIX = [(case, target) for case in (*CASES, *QUANTIZED) for target in EMULATED]
MATRIX += [("recurrent", target) for target in RECURRENT]
# "rows" has normalizations of several rows at once.
MATRIX += [("rows", target) for target in ("arm-linux-musleabihf", "aarch64-linux-musl", "wasm32")]
# "pools" has windows of all kinds, of which some modules take four at once.
MATRIX += [("pools", target) for target in ("wasm32", "wasm32-relaxed-simd")]
# "windows" has those of small convolutions that sum over taps in registers, and others.
MATRIX += [("windows", target) for target in ("wasm32", "wasm32-relaxed-simd")]
# "filters" has those with one filter per channel, and batch normalizations of rows of all lengths.
MATRIX += [("filters", target) for target in ("wasm32", "wasm32-relaxed-simd")]
# Emulators lack the vector instructions that the oldest processor of the target's default has.
LOONGARCH = "loongarch64-linux-musl:generic_la64+f+d"
MATRIX += [(case, LOONGARCH) for case in ("artifacts", "lenet")]
# As Android has it, numbers are handed over as on processors that cannot compute with them.
MATRIX += [(case, "arm-linux-androideabi") for case in ("artifacts", "lstm_cls")]
# "threads" is that with threads, where libraries make them by system calls, and by Windows, and where they are workers.
THREADED = (
    *("aarch64-linux-musl", "arm-linux-musleabihf", "riscv64-linux-musl", LOONGARCH, "x86_64-windows"),
    *("wasm32-threads", "wasm32-threads-relaxed-simd"),
)
MATRIX += [("threads", target) for target in THREADED]
MATRIX += [(case, "x86_64-windows") for case in ("mlp", "lenet")]
# Dense plans, with 8-bit indices and with 16-bit ones.
DENSE = {
    "artifacts, dense": 2,
    "artifacts, dense with wide indices": 1,
    "artifacts, dense with shared names": 4,
}
MATRIX += [(case, target) for case in DENSE for target in ("wasm32", "arm-linux-musleabihf", "cortex-m4f")]


@functools.cache
def model_of(case: str) -> CompiledModel:
    if case == "recurrent":
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(packed_artifacts(Path(name), case), {}, {}, (), lambda line: None)
        layers = {f"{kind}{part}_packed" for kind in ("lstm", "gru", "rnn") for part in ("", "_grad")}
        assert {k.function for k in model.plan.kernels} >= layers and model.plan.symbols
        return model
    if case == "rows":
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(packed_artifacts(Path(name), case), {}, {}, (), lambda line: None)
        together = {"gelu.long", "layer_normalization.together", "softmax.together"}
        assert set(model.plan.features) >= together and model.plan.symbols
        return model
    if case == "pools":
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(packed_artifacts(Path(name), case), {}, {}, (), lambda line: None)
        assert {k.function for k in model.plan.kernels} >= {"max_pool", "max_pool_grad"}
        return model
    if case == "windows":
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(packed_artifacts(Path(name), case), {}, {}, (), lambda line: None)
        assert {k.function for k in model.plan.kernels} >= {"conv"} and "conv.groups" in model.plan.features
        return model
    if case == "filters":
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(packed_artifacts(Path(name), case), {}, {}, (), lambda line: None)
        assert "conv.depthwise" in model.plan.features
        assert "depthwise_conv" not in {k.function for k in model.plan.kernels}
        return model
    if case in ("packed", "threads"):
        threads = "3" if case == "threads" else "off"
        with tempfile.TemporaryDirectory() as name:
            model = compile_model(
                packed_artifacts(Path(name)),
                {},
                {},
                (),
                lambda line: None,
                options=PlanOptions(threads=threads),
            )
        assert model.threads == (3 if case == "threads" else 1)
        assert {k.function for k in model.plan.kernels} >= PACKED and model.plan.symbols
        return model
    if case in DENSE:
        dense = with_dense_plans([model_of("artifacts")], DENSE[case])
        assert dense is not None and dense_form(dense[0].plan_bytes) == DENSE[case]
        return dense[0]
    if case in QUANTIZED:
        with tempfile.TemporaryDirectory() as name:
            return compile_model(artifact_set(Path(name), case), {}, {}, (), lambda line: None)
    folder = OWN if case == "artifacts" else SHARED / case
    if not folder.is_dir():
        pytest.skip(f"the artifacts of {case} are not here")
    model = compile_model(folder, {}, {}, (), lambda line: None)
    assert model.plan.symbols, "the batch is to be free"
    return model


@functools.cache
def library_of(case: str, target: str) -> BuiltLibrary:
    model = model_of(case)
    return build_checked(contents_of([model]), model.registry, parse_target(target), find_toolchain())


@functools.cache
def baseline_of(case: str) -> Baseline:
    """What this machine computes."""
    return baseline(model_of(case), library_of(case, str(host_target())), short=case in LONG)


@pytest.mark.parametrize(
    ("case", "target"), [pytest.param(*pair, marks=pytest.mark.xdist_group(pair[0])) for pair in MATRIX]
)
def test_computes_the_same(case: str, target: str) -> None:
    wanted = parse_target(target)
    assert find_emulator(wanted) is not None, why_not_run(wanted)
    if case == "threads" and "windows" in target:
        assert {"CreateThread", "SleepConditionVariableSRW"} <= set(library_of(case, target).binary.imports)
    found = prove_foreign(baseline_of(case), library_of(case, target), wanted, find_toolchain())
    print(f"{case} {target}: {found.text}")
    assert found.proven and found.steps > 10 and found.stack is not None
    assert found.step is None or found.step.units < 1


# QEMU's board with the Cortex-M33 of AN505: secure addresses, from which it starts, and memory behind them.
M33 = """MEMORY {
  CODE : ORIGIN = 0x10000000, LENGTH = 4M
  FAST : ORIGIN = 0x38000000, LENGTH = 2M
  LARGE : ORIGIN = 0x80000000, LENGTH = 16M
}
INCLUDE host_semihosting.inc
"""


@pytest.mark.xdist_group("artifacts")
def test_a_cortex_m33_executes_the_code_of_the_m4f(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/guides/targets.md promises to its boards."""
    library, here, root = library_of("artifacts", "cortex-m4f"), baseline_of("artifacts"), assets.root
    shutil.copytree(root("templates"), tmp_path / "templates")
    (tmp_path / "templates/verify/mps2-an505.ld").write_text(M33)
    places = {"templates": tmp_path / "templates"}
    monkeypatch.setattr(assets, "root", lambda kind: places.get(kind) or root(kind))
    traits = replace(parse_target("cortex-m4f").traits, machine="mps2-an505")
    monkeypatch.setitem(_TABLE, "cortex-m4f", traits)
    found = prove_foreign(here, library, parse_target("cortex-m4f"), find_toolchain())
    assert found.proven and found.steps > 10
    assert found.step is None or found.step.units < 1
