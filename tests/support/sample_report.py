"""A size report with every kind of row, and names that no renderer may take for its own syntax."""

from __future__ import annotations

from minbuild.ir.size_report import (
    SCHEMA,
    Arena,
    Group,
    LiveTensor,
    ModelReport,
    Named,
    Persistent,
    Phase,
    Region,
    Row,
    SectionRow,
    SessionMemory,
    SizeReport,
    Sizes,
    SpeedFeature,
    Stack,
    Static,
    Suggestion,
    TargetReport,
    TypeRow,
    Verification,
)

DIGEST = "0123456789abcdef" * 4


ALIVE = tuple(
    LiveTensor(f"/conv{i}/<out>_0", f"/conv{i}", "forward", size)
    for i, size in enumerate(
        (150_528, 75_264, 37_632, 18_816, 9_408, 4_704, 2_352, 1_200, 1_200, 1_200, 1_008)
    )
) + tuple(
    LiveTensor(f"scratch of step 29, argument {i}", "/pool/Grad", "backward", 16 * (i + 3))
    for i in (1, 4, 37)
)


def operator(name: str, size: int, nodes: int) -> Row:
    symbols = (Named((f"{name.lower()}<float>",), size),) if size else ()
    return Row(
        "operator", name, size, (name,), ("float",), tuple(f"/net/{name}_{i}" for i in range(nodes)), symbols,
        size + 17 * nodes,
    )  # fmt: skip


def make_target(name: str = "x86_64-linux-gnu", growth: int = 0) -> TargetReport:
    sizes = [1711, 1502, 1207, 901, 703, 409, 307, 211, 113, 109, 107, 103, 101, 97, 0]
    operators = tuple(
        operator(f"com.microsoft:Op{i}<x>&|_`", size + growth, i + 1) for i, size in enumerate(sizes)
    )
    rows = (
        *operators,
        Row("shared", "dot (gemm.h)", 1303, tuple(o.name for o in operators[:3]), (), (),
            (Named(("dot<float>", "dot<int>"), 1303),)),
        Row("runtime", "session", 2111, (), (), (),
            (Named(("mb_train_step",), 2003), Named(("mb_create",), 108))),
        Row("library", "memcpy", 59, (), (), (), (Named(("memcpy",), 59),)),
        Row("literal", "literals and jump tables (.rodata)", 419, (), (), (), ()),
        Row("overhead", "section headers", 896, (), (), (), ()),
        Row("overhead", "padding before .text", 13, (), (), (), ()),
    )  # fmt: skip
    file = sum(r.bytes for r in rows)
    kinds = ("operator", "shared", "runtime", "library", "literal", "overhead")
    full = (61_001, 4_003, 3_301, 61, 997, 5_003)
    groups = tuple(
        Group(kind, kind.title(), sum(r.bytes for r in rows if r.kind == kind), f)
        for kind, f in zip(kinds, full, strict=True)
    )
    owned = [row.name for row in operators]
    rest = {g.title: g.bytes for g in groups[2:]}
    phases = (
        Phase("Forward", ("forward",), sum(o.bytes for o in operators[:5]), tuple(owned[:5])),
        Phase("Optimizer", ("optimizer",), sum(o.bytes for o in operators[5:7]), tuple(owned[5:7])),
        Phase("Shared by forward and backward", ("forward", "backward"),
              sum(o.bytes for o in operators[7:]) + 1303, (*owned[7:-1], "dot (gemm.h)")),
        *(Phase(title, (), size, (title.lower(),)) for title, size in rest.items()),
    )  # fmt: skip
    sections = (
        SectionRow(".text", 60_000, file - 1409, 60_000, file - 1409),
        SectionRow(".rodata", 5_000, 500, 5_000, 500),
        SectionRow(".bss", 0, 0, 777, 256),
        SectionRow("headers and padding", sum(full) - 65_000, 909, 0, 0),
    )
    return TargetReport(
        target=name,
        trimmed=Sizes(file, file - 1111, 5_077),
        full=Sizes(sum(full), sum(full) - 2_222, 23_456),
        groups=groups,
        rows=rows,
        sections=sections,
        static=Static(16, 256),
        ram=272 + 310_272 + 712_440 + 66_640,
        session=SessionMemory(1_104, 65_536),
        exports=("mb_create", "mb_train_step"),
        imports=(),
        verification=Verification(
            "Trimmed and full agree bit for bit over 10 steps.",
            0.4375,
            Stack((("mb_create", 1_440), ("mb_train_step", 17_952 + growth), ("mb_optimizer_step", 576))),
        ),
        toolchain="ziglang 0.17.0",
        flags=("-Oz", "--gc-sections"),
        digest=DIGEST,
        files=(("Library", "dist/lib/libminbuild.so"),),
        phases=phases,
        suggestions=(
            Suggestion("half <the> batch", 0, 12, 150_528, "Batches of 4.", "--max-dim batch=4"),
            Suggestion("fixed sizes: batch 8", 1_433, 207, -64, "Every batch | is 8.", "--dim batch=8"),
        ),
        regions=(
            Region("code", "Code", "flash", 60_000, file - 1409, 60_000, file - 1409),
            Region("constants", "Constants", "flash", 5_000, 500, 5_000, 500),
            Region("zeroed", "Zeroed data", "RAM", 0, 0, 777, 256),
            Region("unloaded", "Headers and padding", "the file only", sum(full) - 65_000, 909, 0, 0),
        ),
        features=(
            SpeedFeature("packing", "Packed <products>", "yes", "3 of 7 | are large.", 20_123, 540_672),
            SpeedFeature("threads", "Threads", "no", "--threads off."),
        ),
        types=(
            TypeRow("gather", ("int64_t", "uint32_t"), ("int32_t", "int64_t", "uint32_t", "uint8_t"), 1, 8),
            TypeRow("gemm", ("float",), ("bfloat16", "double", "float", "strange"), 3, 9),
            TypeRow("grid_sample", (), ("double", "float"), 0, 4),
            TypeRow("lstm", (), ("float",), 0, 2),
        ),
    )


def make_report(*targets: TargetReport, name: str = "lenet") -> SizeReport:
    facts = ModelReport(
        name=name,
        minbuild="0.1.0",
        files=(("training_model.onnx", DIGEST), ("checkpoint", DIGEST[::-1])),
        sizes=(("batch", 8),),
        arenas=(
            Arena("train", 310_272, 304_128, 29, "/pool/Grad", ALIVE),
            Arena("evaluate", 150_528, 150_528),
        ),
        persistent=Persistent(178_104, 178_104, 356_208, 0, 24, 4_321),
        plan_bytes=3_912,
        checkpoint_bytes=180_216,
        kernels=12,
        full_kernels=97,
        notes=("eval_model.onnx: dropped unused outputs.",),
    )
    return SizeReport(SCHEMA, facts, targets or (make_target(),))
