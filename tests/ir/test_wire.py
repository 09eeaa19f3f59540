"""minbuild.ir.flatbuffers.codec and minbuild.ir.flatbuffers.schema: layouts, round trips, and what hostile bytes do."""

from __future__ import annotations

import random
import struct
import time

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minbuild import assets
from minbuild.ir.flatbuffers.codec import MAX_DEPTH, decode, encode, parse_schema

EVERYTHING = parse_schema(
    """
    namespace a.b; // a comment
    /* and another */
    enum Color : ubyte { Red = 1, Green, Blue = 7 }
    struct Point { x:short; y:int; flag:bool; }
    struct Line { from:Point; weight:double; }
    table Leaf { text:string; next:Leaf; value:float = 0.5; }
    table Root {
      color:Color = Green;
      count:long = -1;
      line:Line;
      points:[Point];
      names:[string];
      leaves:[Leaf];
      big:[ulong];
      bytes:[ubyte];
      leaf:Leaf;
      on:bool = true;
    }
    root_type Root;
    file_identifier "TEST";
    """
)

VALUE = {
    "color": 7,
    "count": 5,
    "line": ((1, -2, True), 0.25),
    "points": [(1, 2, False), (-3, 2**31 - 1, True)],
    "names": ["", "é", "x" * 300],
    "leaves": [{"text": "a", "value": 2.0}, {"next": {"text": "deep"}}],
    "big": [0, 2**64 - 1],
    "bytes": b"\x00\x01\xff",
    "leaf": {},
    "on": False,
}


def trainer():
    return parse_schema((assets.root("schemas") / "trainer.fbs").read_text(encoding="utf-8"))


def test_struct_layout_follows_alignment():
    point, line = EVERYTHING.structs["Point"], EVERYTHING.structs["Line"]
    assert [(m.name, m.offset) for m in point.members] == [("x", 0), ("y", 4), ("flag", 8)]
    assert (point.size, point.align) == (12, 4)
    assert [(m.name, m.offset) for m in line.members] == [("from", 0), ("weight", 16)]
    assert (line.size, line.align) == (24, 8)


def test_tables_enums_and_defaults():
    root = EVERYTHING.tables["Root"]
    assert [(f.slot, f.vtable_offset) for f in root.fields] == [(i, 4 + 2 * i) for i in range(10)]
    assert (root.fields[0].default, root.fields[1].default, root.fields[9].default) == (2, -1, True)
    assert EVERYTHING.enums["Color"].values == {"Red": 1, "Green": 2, "Blue": 7}
    assert (EVERYTHING.root, EVERYTHING.identifier, EVERYTHING.namespace) == ("Root", "TEST", "a.b")


def test_explicit_ids_order_the_fields():
    schema = parse_schema("table T { b:int (id: 1); a:int (id: 0, deprecated); } root_type T;")
    assert [f.name for f in schema.tables["T"].fields] == ["a", "b"]
    with pytest.raises(ValueError, match="without gaps"):
        parse_schema("table T { b:int (id: 1); } root_type T;")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("table T { a:int", "ends inside"),
        ("table T { a:Missing; } root_type T;", "'Missing' is not declared"),
        ("table T { a:int; }", "root_type ''"),
        ("union U { A } table T {} root_type T;", "'A' is not a table"),
        ("struct S { a:string; } table T {} root_type T;", "must be a scalar or a struct"),
        ('table T {} root_type T; file_identifier "ABC";', "4 characters"),
        ("table T { a:int ? }", "unexpected character '\\?' in line 1"),
    ],
)
def test_bad_schemas_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_schema(text)


def test_the_plan_schema_has_the_layout_the_device_reads():
    schema = trainer()
    fields = schema.tables["Trainer"].fields
    scalars = [f.type.element is None for f in fields]
    assert scalars == sorted(scalars, reverse=True)  # all scalars stand before all vectors
    for field in (f for f in fields if f.type.element is not None):
        size, align = field.type.element.size, field.type.element.align
        assert size & (size - 1) == 0, f"{field.name}: the device checks alignment by the element's size"
        assert size % align == 0
    for struct_ in schema.structs.values():  # members where a C compiler puts them, without gaps
        assert sum(m.type.size for m in struct_.members) == struct_.size
    assert schema.identifier == "MBTR"


def test_round_trip_of_every_kind():
    data = encode(EVERYTHING, VALUE)
    back = decode(EVERYTHING, data)
    assert (back["color"], back["count"], back["on"]) == (7, 5, False)
    assert back["line"] == ((1, -2, True), 0.25)
    assert back["points"].tolist() == VALUE["points"]
    assert back["names"] == VALUE["names"]
    assert back["leaves"][0] == {"text": "a", "next": None, "value": 2.0}
    assert back["leaves"][1]["next"]["text"] == "deep"
    assert back["big"].tolist() == VALUE["big"] and bytes(back["bytes"]) == VALUE["bytes"]
    assert back["leaf"] == {"text": None, "next": None, "value": 0.5}
    assert encode(EVERYTHING, back) == data == encode(EVERYTHING, VALUE)


KINDS = parse_schema(
    """
    table Number { value:long; }
    table Text { value:string; inner:Holder; }
    union Either { Number, Text }
    table Holder { before:int; held:Either; after:int; }
    root_type Holder;
    """
)


def test_unions_hold_the_table_that_is_named_before_them():
    number = {"before": 1, "held_type": 1, "held": {"value": -5}, "after": 2}
    text = {"before": 0, "held_type": 2, "held": {"value": "x", "inner": number}, "after": 3}
    for value in (number, {"before": 0, "held_type": 0, "held": None, "after": 0}):
        assert decode(KINDS, encode(KINDS, value)) == value
    data = encode(KINDS, text)
    assert decode(KINDS, data) == text and encode(KINDS, text) == data


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"held": {"value": 1}}, "Holder: 'held_type' is 0, but Either holds 1 to 2: Number, Text"),
        ({"held_type": 3, "held": {"value": 1}}, "'held_type' is 3"),
        ({"held_type": 1}, "'held_type' is given, but 'held' is not"),
        ({"held_type": 1, "held": {"inner": None}}, "Number has no field inner"),
    ],
)
def test_unions_that_cannot_be_are_refused(value, problem):
    with pytest.raises(ValueError, match=problem):
        encode(KINDS, value)


def test_absent_is_not_empty():
    assert decode(EVERYTHING, encode(EVERYTHING, {}))["points"] is None
    assert len(decode(EVERYTHING, encode(EVERYTHING, {"points": []}))["points"]) == 0
    assert decode(EVERYTHING, encode(EVERYTHING, {}))["count"] == -1


def test_another_reader_finds_the_same_values():
    data = encode(EVERYTHING, VALUE)
    table = flatbuffers.table.Table(data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0))
    number = flatbuffers.number_types
    assert table.Get(number.Int64Flags, table.Pos + table.Offset(6)) == 5
    points = table.Vector(table.Offset(10))
    assert table.VectorLen(table.Offset(10)) == 2
    assert struct.unpack_from("<hxxi?", data, points + 12) == (-3, 2**31 - 1, True)
    assert data[4:8] == b"TEST"


@pytest.mark.parametrize("filler", range(9))
def test_wide_vectors_are_aligned_from_the_start_of_the_file(filler):
    data = encode(EVERYTHING, {"big": [1, 2, 3], "bytes": bytes(filler), "names": ["x" * filler]})
    whole = np.frombuffer(data, np.uint8)
    big = decode(EVERYTHING, data)["big"]
    assert (big.ctypes.data - whole.ctypes.data) % 8 == 0


def test_numpy_in_numpy_out_and_fast():
    schema = trainer()
    exprs = np.zeros(200_000, schema.structs["Expr"].dtype)
    exprs["a"] = np.arange(len(exprs))
    words = np.arange(1_000_000, dtype=np.int32)
    start = time.perf_counter()
    back = decode(schema, encode(schema, {"exprs": exprs, "params": words}))
    assert time.perf_counter() - start < 1.0
    assert np.array_equal(back["exprs"], exprs) and np.array_equal(back["params"], words)


@pytest.mark.parametrize(
    "value",
    [
        {"color": 256},
        {"count": 2**63},
        {"big": [-1]},
        {"big": np.array([-1])},
        {"points": [(40_000, 0, False)]},
        {"points": [(1, 2)]},
        {"points": np.zeros(3)},
        {"bytes": np.array([1.5])},
        {"big": np.zeros((2, 2), np.uint64)},
        {"unknown": 1},
    ],
)
def test_what_does_not_fit_is_an_error(value):
    with pytest.raises(ValueError):
        encode(EVERYTHING, value)


def test_required_fields():
    schema = parse_schema("table T { a:string (required); b:int; } root_type T;")
    with pytest.raises(ValueError, match="needs a"):
        encode(schema, {"b": 1})
    lax = parse_schema("table T { a:string; b:int; } root_type T;")
    with pytest.raises(ValueError, match="has no 'a'"):
        decode(schema, encode(lax, {"b": 1}))


def test_every_truncation_is_an_error():
    data = encode(EVERYTHING, VALUE)
    for length in range(len(data) - 8):
        with pytest.raises(ValueError):
            decode(EVERYTHING, data[:length])


def survives(data: bytes) -> None:
    try:
        decode(EVERYTHING, data)
    except ValueError as error:
        assert str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_never_crash(data, with_identifier):
    survives(data[:4] + b"TEST" + data[4:] if with_identifier else data)


def test_mutated_files_never_crash():
    data = encode(EVERYTHING, VALUE)
    dice = random.Random(1)
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(8, len(broken) - 3)
            broken[at : at + 4] = struct.pack(
                "<I", dice.choice([0, 1, 4, 0x7FFFFFFF, 0xFFFFFFFF, dice.randrange(999)])
            )
        survives(bytes(broken))


def test_deep_nesting_is_refused():
    value: dict = {}
    for _ in range(80):
        value = {"next": value}
    with pytest.raises(ValueError, match="nested deeper"):
        decode(EVERYTHING, encode(EVERYTHING, {"leaf": value}))


def test_shared_offsets_cannot_multiply():
    """100,000 references to one long string would decode to 10 GB of text."""
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("x" * 100_000)
    builder.StartVector(4, 100_000, 4)
    for _ in range(100_000):
        builder.PrependUOffsetTRelative(text)
    names = builder.EndVector()
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(4, names, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TEST")
    with pytest.raises(ValueError, match="too often"):
        decode(EVERYTHING, bytes(builder.Output()))


NESTED = parse_schema('table Node { child:Node; value:int; } root_type Node; file_identifier "NEST";')


def test_tables_nest_as_deep_as_is_allowed() -> None:
    def nested(depth: int) -> bytes:
        node: dict = {"value": depth}
        for _ in range(depth):
            node = {"child": node, "value": 0}
        return encode(NESTED, node)

    found = decode(NESTED, nested(MAX_DEPTH))
    for _ in range(MAX_DEPTH):
        found = found["child"]
    assert found["value"] == MAX_DEPTH
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}"):
        decode(NESTED, nested(MAX_DEPTH + 1))


def test_a_head_is_eight_bytes_with_the_identifier() -> None:
    with pytest.raises(ValueError, match="7 bytes are too few"):
        decode(NESTED, b"\x08\0\0\0NES")
    with pytest.raises(ValueError, match="byte 8: 4 bytes expected, but the file has 8"):
        decode(NESTED, b"\x08\0\0\0NEST")
    with pytest.raises(ValueError, match="instead of b'NEST'"):
        decode(NESTED, encode(NESTED, {"value": 1}).replace(b"NEST", b"REST"))
