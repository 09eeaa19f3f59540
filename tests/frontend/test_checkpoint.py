"""minbuild.frontend.checkpoint: reads what ONNX Runtime wrote and what we write; tells damage."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from places import GOLDEN

from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import (
    LARGEST_FILE,
    read_checkpoint,
    schema,
    write_checkpoint,
    write_checkpoint_files,
)
from minbuild.frontend.seal import _SUMS
from minbuild.ir import Checkpoint, ElementType, OptimizerGroup, Parameter, Seal
from minbuild.ir.flatbuffers.codec import decode, encode

pytestmark = pytest.mark.unit

SETS = sorted(p.parent for p in GOLDEN.glob("*/checkpoint"))


def parameter(name: str, data: np.ndarray, trainable: bool = True) -> Parameter:
    element = next(e for e in ElementType if e.dtype == data.dtype)
    return Parameter(name, element, data.shape, trainable, data)


def tensor(name: str = "w", **changes) -> dict:
    return {"name": name, "dims": [2], "element": 1, "data": bytes(8), **changes}


def file(*trainable: dict, **changes) -> bytes:
    module = {"trainable": list(trainable), "frozen": []}
    return encode(schema(), {"version": 2, "module": module, **changes})


def same(left: Checkpoint, right: Checkpoint) -> None:
    assert [(p.name, p.element, p.shape, p.trainable) for p in left.parameters] == [
        (p.name, p.element, p.shape, p.trainable) for p in right.parameters
    ]
    for a, b in zip(left.parameters, right.parameters, strict=True):
        assert (a.data is None) == (b.data is None)
        if a.data is not None:
            assert a.data.tobytes() == b.data.tobytes()
    assert left.properties == right.properties and left.nominal == right.nominal
    assert len(left.groups) == len(right.groups)
    for g, h in zip(left.groups, right.groups, strict=True):
        assert (g.name, g.step, g.initial_learning_rate) == (h.name, h.step, h.initial_learning_rate)
        assert list(g.moments) == list(h.moments)
        for name in g.moments:
            assert list(g.moments[name]) == list(h.moments[name])
            for moment, data in g.moments[name].items():
                assert data.tobytes() == h.moments[name][moment].tobytes()


@pytest.mark.parametrize("folder", SETS, ids=lambda p: p.name)
def test_reads_what_onnx_runtime_wrote(folder):
    meta = json.loads((folder / "meta.json").read_text())
    reference = np.load(folder / "reference.npz")
    first, last = read_checkpoint(folder / "checkpoint"), read_checkpoint(folder / "checkpoint_final_opt")
    for checkpoint in (first, last):
        found = {
            p.name: {"shape": list(p.shape), "dtype": str(p.element.dtype), "requires_grad": p.trainable}
            for p in checkpoint.parameters
        }
        assert found == meta["parameters"]
    assert first.groups == () and not first.nominal
    for p in last.parameters:
        if p.trainable or p.name in meta["forward_changes_params"]:
            assert np.array_equal(p.data, reference[f"param_final/{p.name}"])
    (group,) = last.groups
    assert (group.name, group.step) == ("group0", meta["steps"])
    assert group.initial_learning_rate == pytest.approx(0.001)
    assert set(group.moments) == set(meta["requires_grad"])
    wanted = ["momentum0"] if meta["optimizer"] == "SGD" else ["momentum0", "momentum1"]
    assert all(sorted(m) == wanted for m in group.moments.values())
    same(read_checkpoint(write_checkpoint(last)), last)


def test_round_trip_of_every_type_and_property():
    rng = np.random.default_rng(0)
    stored = [e for e in ElementType if e not in (ElementType.FLOAT16, ElementType.BFLOAT16)]
    arrays = {e.label: (rng.random((3, 2)) * 100).astype(e.dtype) for e in stored}
    parameters = [Parameter(n, ElementType[n.upper()], a.shape, True, a) for n, a in arrays.items()]
    parameters += [
        parameter("scalar", np.float32(3.5).reshape(())),
        parameter("empty", np.zeros((0, 4), np.float32), False),
        parameter("strided", np.arange(12, dtype=np.float32).reshape(3, 4).T, False),
        parameter("nan", np.array([np.nan, -0.0, np.inf], np.float32), False),
    ]
    moments = {"float": {"momentum0": np.ones((3, 2), np.float32), "momentum1": np.zeros((3, 2), np.float32)}}
    group = OptimizerGroup("group0", 2**40, 0.5, moments)
    properties = {"i": -(2**63), "zero": 0, "f": 0.25, "s": "é", "none": ""}
    checkpoint = Checkpoint(tuple(parameters), (group,), properties)
    data = write_checkpoint(checkpoint)
    same(read_checkpoint(data), checkpoint)
    assert write_checkpoint(read_checkpoint(data)) == data
    assert data[4:8] == b"ODTC"


def test_wide_elements_are_usable_wherever_they_lie():
    for filler in range(4):
        names = [parameter("n" * (filler + 1), np.arange(3.0)), parameter("b", np.arange(5))]
        for p in read_checkpoint(write_checkpoint(Checkpoint(tuple(names)))).parameters:
            assert p.data.flags.aligned and p.data.tolist() == list(range(len(p.data)))


def test_nominal_has_names_and_types_only():
    checkpoint = Checkpoint((Parameter("w", ElementType.FLOAT, (), True, None),), nominal=True)
    data = write_checkpoint(checkpoint)
    assert len(decode(schema(), data)["module"]["trainable"][0]["data"]) == 0
    same(read_checkpoint(data), checkpoint)


def test_external_data_is_mapped_not_read(tmp_path):
    outside = tensor(dims=[2, 2], data=None, external_offset=8)
    inside = tensor("small")
    module = {"trainable": [outside, inside], "frozen": [], "external": True}
    (tmp_path / "checkpoint").write_bytes(encode(schema(), {"version": 2, "module": module}))
    with pytest.raises(BadInput, match=r"checkpoint.data: no such file, but parameter 'w'"):
        read_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint.data").write_bytes(bytes(8) + np.arange(3, dtype=np.float32).tobytes())
    with pytest.raises(BadInput, match="needs bytes 8 to 24, but the file has 20"):
        read_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint.data").write_bytes(bytes(8) + np.arange(4, dtype=np.float32).tobytes())
    found = read_checkpoint(tmp_path / "checkpoint").parameters[0].data
    assert isinstance(found, np.memmap) and found.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(BadInput, match="needs the checkpoint's path"):
        read_checkpoint((tmp_path / "checkpoint").read_bytes())


@pytest.mark.parametrize("version", [0, 1, 3])
def test_other_versions_are_refused(version):
    with pytest.raises(BadInput, match=f"version {version} is not supported, only version 2"):
        read_checkpoint(file(tensor(), version=version))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (tensor(data=bytes(9)), "parameter 'w' has 9 bytes, but float32[2] takes 8"),
        (tensor(dims=[2, 2]), "parameter 'w' has 8 bytes, but float32[2, 2] takes 16"),
        (tensor(dims=[-2]), "parameter 'w' has the impossible shape [-2]"),
        (tensor(dims=[2**62, 2**62]), "parameter 'w' has 8 bytes"),
        (tensor(data=None), "parameter 'w' has no data"),
        (tensor(element=99), "parameter 'w' has element type 99"),
        (tensor(element=10), "parameter 'w' is float16, which checkpoints cannot hold"),
        (tensor(name=None), "a parameter has no name"),
    ],
)
def test_bad_tensors_are_all_named(bad, problem):
    with pytest.raises(BadInput) as caught:
        read_checkpoint(file(bad, tensor("twice"), tensor("twice")), "some/checkpoint")
    lines = str(caught.value).splitlines()
    assert any(problem in line for line in lines)
    assert any("parameter 'twice' stands in it more than once" in line for line in lines)
    assert all(line.startswith("some/checkpoint: ") for line in lines)


def test_no_parameters_at_all():
    for data in (file(), encode(schema(), {"version": 2})):
        with pytest.raises(BadInput, match="holds no parameters"):
            read_checkpoint(data)


def test_bad_optimizer_state_is_named():
    states = [{"parameter": "w", "moments": [tensor("momentum0", data=bytes(4))]}, {"parameter": "w"}]
    with pytest.raises(BadInput) as caught:
        read_checkpoint(file(tensor(), groups=[{"name": "group0", "states": states}]))
    assert "optimizer state 'momentum0' of parameter 'w' has 4 bytes" in str(caught.value)
    assert "optimizer state of parameter 'w' stands in it more than once" in str(caught.value)


def test_truncated_files_are_refused_or_the_same():
    data = (SETS[0] / "checkpoint_final_opt").read_bytes()
    whole = read_checkpoint(data)
    for length in [*range(200), *range(200, len(data), 97), *range(len(data) - 100, len(data))]:
        try:
            found = read_checkpoint(data[:length])
        except BadInput as error:
            assert "checkpoint: " in str(error)
        else:
            assert length > len(data) - 4
            same(found, whole)


def test_flipped_bytes_never_crash():
    data = (SETS[0] / "checkpoint_final_opt").read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 1500):
        broken = bytearray(data)
        broken[at] ^= int(rng.integers(1, 256))
        try:
            read_checkpoint(bytes(broken))
        except BadInput as error:
            assert "checkpoint: " in str(error)


def test_what_cannot_be_written_is_told():
    half = Checkpoint((Parameter("h", ElementType.FLOAT16, (1,), True, np.zeros(1, np.float16)),))
    with pytest.raises(BadInput, match="'h' has element type float16"):
        write_checkpoint(half)
    with pytest.raises(BadInput, match="'w' has no data"):
        write_checkpoint(Checkpoint((Parameter("w", ElementType.FLOAT, (1,), True, None),)))
    big = Checkpoint((parameter("w", np.zeros(1, np.float32)),), properties={"i": 2**63})
    with pytest.raises(BadInput, match="cannot be written"):
        write_checkpoint(big)
    huge = np.broadcast_to(np.float32(0), (2**30,))
    with pytest.raises(BadInput, match="2 GiB"):
        write_checkpoint(Checkpoint((parameter("w", huge),)))


@pytest.mark.parametrize(("element", "name"), [(10, "float16"), (16, "bfloat16")])
def test_parameters_in_half_precision_are_refused_with_a_way_out(element, name):
    with pytest.raises(
        BadInput, match=f"parameter 'w' is {name}, which checkpoints cannot hold. Keep it in float"
    ):
        read_checkpoint(file(tensor(element=element, data=bytes(4))))


def test_files_of_their_own_begin_where_tensors_and_moments_reach_the_largest():
    weights = np.arange(40, dtype=np.float32)
    group = OptimizerGroup("group0", 1, 0.1, {"w": {"momentum0": np.ones(40, np.float32)}})
    checkpoint = Checkpoint((parameter("w", weights),), (group,))
    assert set(write_checkpoint_files(checkpoint, "c", 321)) == {"c"}
    for largest in (320, 200, 100):
        files = write_checkpoint_files(checkpoint, "c", largest)
        assert set(files) == {"c", "c.data"} and files["c.data"] == weights.tobytes()


def test_the_largest_file_leaves_a_mebibyte_of_the_formats_2_gib():
    assert LARGEST_FILE == 2**31 - 2**20
    exactly = np.broadcast_to(np.float32(0), (LARGEST_FILE // 4,))
    with pytest.raises(BadInput, match="2 GiB"):
        write_checkpoint(Checkpoint((parameter("w", exactly),)))


def test_external_data_may_begin_at_0(tmp_path):
    module = {"trainable": [tensor(data=None, external_offset=0)], "frozen": [], "external": True}
    (tmp_path / "checkpoint").write_bytes(encode(schema(), {"version": 2, "module": module}))
    (tmp_path / "checkpoint.data").write_bytes(np.arange(2, dtype=np.float32).tobytes())
    assert read_checkpoint(tmp_path / "checkpoint").parameters[0].data.tolist() == [0, 1]


def test_a_seal_without_optimizer_state_has_the_learning_rate_of_a_session():
    data = write_checkpoint(Checkpoint((parameter("w", np.ones(3, np.float32)),), seal=Seal(7, (5,))))
    assert data[: -_SUMS.size].endswith(struct.pack("<qqff", 5, 0, 0.001, 0))
    assert read_checkpoint(data).seal == Seal(7, (5,))


def test_a_compact_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.compact").write_bytes(b"0000MBCP" + bytes(64))
    with pytest.raises(
        BadInput, match=r"checkpoint\.compact: a compact checkpoint, which has no names.*Give the"
    ):
        read_checkpoint(tmp_path / "checkpoint.compact")
