"""The same numbers in console, JSON, Markdown and HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import jsonschema
from report_pages import Page, markdown_rows, numbers_of_json, schema
from sample_report import make_report, operator

from minbuild.escape import for_markdown
from minbuild.ir.size_report import ModelTensor, SizeReport, Smaller
from minbuild.report import console, html, markdown, report_tables, suggestions
from minbuild.report import element_types as types
from minbuild.report import json as json_report
from minbuild.report import memory_tables as memory
from minbuild.report import size_tables as library
from minbuild.report.table import Line, Table, kib, percent, saving, text


def test_markdown_and_html_carry_the_numbers_of_the_json(report: SizeReport) -> None:
    expected = numbers_of_json(report)
    assert len(expected) > 100
    for rows in (markdown_rows(markdown.render(report)), Page(html.render(report)).rows):
        found = {(row[0], cell) for row in rows if row for cell in row[1:]}
        assert [pair for pair in expected if pair not in found] == []


def test_console_carries_the_numbers_of_the_json(report: SizeReport) -> None:
    lines = console.render(report, limit=None, width=200).splitlines()
    wanted = numbers_of_json(report)
    assert len(wanted) > 100
    for name, number in wanted:
        assert any(line.startswith(name) and number in line.split() for line in lines), (name, number)


def test_the_headline_is_the_same_everywhere(report: SizeReport) -> None:
    bare = unescape(re.sub(r"<[^>]+>", "", html.render(report)))
    pages = (console.render(report, width=200), markdown.render(report), bare)
    for target in report.targets:
        for fact in report_tables.headline(report, target):
            for page in pages:
                note = for_markdown(fact.note) if page is pages[1] else fact.note
                assert f"{fact.value:,}" in page and note in page, fact


def test_what_decides_is_said_last(report: SizeReport) -> None:
    facts = replace(report.model, smaller=(Smaller("batch", 1, 100), Smaller("batch", 8, 900)))
    report = replace(report, model=facts)
    last = console.render(report, width=60).splitlines()[-1]
    target = report.targets[-1]
    assert last == report_tables.one_line(report, target)
    flash = target.trimmed.loaded + facts.plan_bytes + facts.checkpoint_bytes
    rest = target.ram - max(arena.peak for arena in facts.arenas)
    assert (
        f"flash {flash:,} B" in last and f"{rest + 100:,} B at batch 1, {rest + 900:,} B at batch 8" in last
    )
    told = {fact.label: fact.value for fact in report_tables.headline(report, target)}
    assert (told["Flash total"], told["RAM at batch 1"]) == (flash, rest + 100)
    assert f"RAM then {rest + 900:,}" in str(memory.memory(facts, target).lines)
    jsonschema.validate(json_report.as_dict(report), schema())


def test_every_table_adds_up(report: SizeReport) -> None:
    for target in report.targets:
        others = library.others(target)
        sums = [line for line in others.lines if line.level == "sum"]
        assert others.lines[-1].cells[2] == target.trimmed.file == sum(int(line.cells[2]) for line in sums)
        rows = [line for line in others.lines if line.level == "row"]
        own = library.operators(target).lines[-1].cells[4]
        assert sum(int(line.cells[2]) for line in rows) + int(own) == target.trimmed.file
        for limit in (None, 3, 12):
            *rest, total = library.operators(target, limit).lines
            assert sum(int(line.cells[4]) for line in rest) == total.cells[4]
        *rest, total = suggestions.phases(target).lines
        assert sum(int(line.cells[2]) for line in rest) == total.cells[2] == target.trimmed.file
        for limit in (None, 3, 12):
            *rest, total = memory.live_tensors(report.model, limit).lines
            levels = [line.level for line in rest]
            assert levels.index("sum") == len(rest) - 2 and (limit is None or len(rest) - 2 <= limit)
            held = sum(int(line.cells[3]) for line in rest if line.level == "row")
            assert held == total.cells[3] == report.model.arenas[0].peak
        *rest, total = types.types(target).lines
        assert [line.cells[0] for line in rest] == ["gather", "gemm", "2 other operators"]
        for column in (-2, -1):
            assert sum(int(line.cells[column]) for line in rest) == total.cells[column]
        stack = target.stack
        assert stack is not None and stack.peak == 17_952 + (1000 if target is report.targets[1] else 0)
        held = {line.cells[0]: line.cells[1] for line in memory.memory(report.model, target).lines}
        assert held["Peak stack"] == max(size for name, size in held.items() if name.startswith("Stack: "))
        assert held["RAM and stack"] == held["RAM"] + held["Peak stack"]
        *rest, total = library.sections(target).lines
        for column in range(1, 5):
            assert sum(int(line.cells[column]) for line in rest) == total.cells[column]
        *rest, in_regions = library.regions(target).lines
        for column in range(1, 5):
            added = sum(int(line.cells[column + 1]) for line in rest)
            assert added == in_regions.cells[column + 1] == total.cells[column]
        for limit in (1, 3, 12):
            *rest, total = library.others(target, limit).lines
            assert sum(int(line.cells[2]) for line in rest) == total.cells[2] == target.trimmed.file
            assert len(rest) - 1 <= limit


def test_types_stand_in_their_columns(report: SizeReport) -> None:
    table = types.types(report.targets[0])
    assert [c.strip() for c in table.columns[1:-2]] == [
        *("f32", "f64", "bf16", "i32", "i64", "u8", "u32", "strange")
    ]  # fmt: skip
    marks = {line.cells[0]: line.cells[1:-2] for line in table.lines}
    assert marks["gather"] == ("", "", "", "○", "●", "○", "●", "")
    assert marks["gemm"] == ("●", "○", "○", "", "", "", "", "○")
    assert marks["2 other operators"] == ("○", "○", "", "", "", "", "", "")
    for page in (console.render(report), markdown.render(report), html.render(report)):
        for name in ("f32", "bf16", "strange"):
            assert name in page
        assert page.count("●") > page.count("f32") and "○" in page


def test_a_stack_that_was_not_measured_is_said_so(report: SizeReport) -> None:
    proven = report.targets[0].verification
    assert proven is not None
    unknown = make_report(replace(report.targets[0], verification=replace(proven, stack=None)))
    for page in (console.render(unknown), markdown.render(unknown), html.render(unknown)):
        assert "not measured" in page and "RAM and stack" not in page and "Stack: " not in page
    data = json_report.as_dict(unknown)
    jsonschema.validate(data, schema())
    assert data["targets"][0]["verification"]["stack"] is None and data["summary"][0]["stack"] is None


def test_names_are_not_broken_over_lines() -> None:
    name = "/features/features.2/conv/conv.0/Conv_output_0"
    long = Table(
        "t",
        "T",
        "",
        ("Tensor ", "Made by ", "Bytes"),
        (Line((name, f"{name} {name}", 6_291_456)), Line(("a", "b", 1))),
    )
    shown = console.as_text(long, 60)
    assert all(len(line) <= 60 for line in shown.splitlines())
    cut = [word for word in shown.split() if word.startswith("/")]
    assert len(cut) == 3 and all("…" in word and word.endswith("_output_0") for word in cut)
    assert "6,291,456" in shown
    assert console.as_text(long, 200).count(name) == 3


def test_operators_fit_into_a_hundred_characters(report: SizeReport) -> None:
    """With all columns, names as long as ONNX Runtime has them."""
    names = ("softmax_cross_entropy", "negative_log_likelihood", "layer_normalization")
    serves = (
        "com.microsoft:SoftmaxCrossEntropyLossInternalGrad",
        "com.microsoft:LayerNormalizationGrad",
        "Conv",
    )
    rows = tuple(
        replace(
            operator(name, 812, 3), users=serves, types=("float", "int64_t", "uint8_t"), leave_one_out=1_111
        )
        for name in names
    )
    shown = console.as_text(library.operators(replace(report.targets[0], rows=rows)), 100)
    assert all(len(line) <= 100 for line in shown.splitlines())
    found = shown.replace(",", " ").split()
    for name in (*names, "LayerNormalizationGrad", "int64_t"):
        assert found.count(name) >= 1, name
    assert not [word for word in found if word in ("Grad", "Loss", "py", "InternalGrad")]


def test_rows_have_a_cell_for_every_column(report: SizeReport) -> None:
    target = report.targets[0]
    found: tuple[Table, ...] = (
        library.composition(target), library.operators(target), library.others(target), library.sections(target),
        memory.memory(report.model, target), report_tables.comparison(report), report_tables.provenance(report, target),
        *suggestions.further(report, target), *suggestions.further(report, target, 3),
    )  # fmt: skip
    for table in found:
        assert {len(line.cells) for line in table.lines} == {len(table.columns)}, table.key


def test_cells() -> None:
    assert text(1234567) == "1,234,567" and text("x") == "x"
    assert percent(1, 3) == "33.3 %" and percent(1, 0) == "–"
    assert saving(25, 100) == "−75.0 %" and saving(125, 100) == "+25.0 %" and saving(1, 0) == "–"
    assert kib(11_264) == "11.0 KiB" and kib(3 << 20) == "3.0 MiB"


def test_the_model_by_tensor_and_type(report: SizeReport) -> None:
    """Rows and sums by type add up, in every form of the report."""
    tensors = (
        ModelTensor("weight", "float32", (10, 4), "parameter", 160),
        ModelTensor("bias", "float32", (10,), "frozen", 40),
        ModelTensor("count", "int64", (), "buffer", 8),
        ModelTensor("codes", "uint4", (9, 5), "constant", 23),
    )
    facts = replace(report.model, tensors=tensors, checkpoint_bytes=300)
    for limit in (None, 2):
        lines = memory.model_tensors(facts, limit).lines
        rows = [line for line in lines if line.level == "row"][:-1]
        sums = {line.cells[0]: line.cells[4] for line in lines if line.level == "sum"}
        assert sum(int(line.cells[4]) for line in rows) == 231 and len(rows) == (limit or 4)
        assert sums == {"All of float32": 200, "All of int64": 8, "All of uint4": 23}
        assert lines[-1].cells[4] == 92
    whole = replace(report, model=facts)
    jsonschema.validate(json_report.as_dict(whole), schema())
    assert json_report.as_dict(whole)["model"]["tensors"][0]["shape"] == [10, 4]
    for page in (console.render(whole), markdown.render(whole), html.render(whole)):
        assert "Model by tensor and type" in page and "10x4" in page and "running statistics" in page
        assert "uint4" in page and "quantized" in page and "9x5" in page
