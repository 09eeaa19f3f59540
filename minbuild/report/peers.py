"""Sizes of other trainers, beside which a report shows its own. The figures and their sources are one data file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from minbuild import assets
from minbuild.ir.size_report import TargetReport
from minbuild.report.table import Line, Table


@dataclass(frozen=True, slots=True)
class Peer:
    """A trainer of another project: bytes of its stripped library, and the source of that figure."""

    name: str
    bytes: int
    source: str


@cache
def peers() -> tuple[Peer, ...]:
    """The trainers to compare with, smallest first."""
    data = json.loads((assets.root("templates") / "report" / "peers.json").read_text(encoding="utf-8"))
    return tuple(sorted((Peer(**row) for row in data["peers"]), key=lambda peer: peer.bytes))


def times(peer: Peer, own: int) -> str:
    """The size of a peer as a multiple of `own` bytes."""
    return f"{peer.bytes / own:,.0f} x" if own else "–"


def beside_ort(target: TargetReport) -> str:
    """The sizes of ONNX Runtime's trainers as multiples of a target's, in one line."""
    found = [peer for peer in peers() if peer.name.startswith("ONNX Runtime")]
    own = target.trimmed.file
    return "; ".join(f"{peer.name}: {peer.bytes:,} B, {times(peer, own)}" for peer in found)


def comparison(target: TargetReport) -> Table:
    """The library of a target beside those of other trainers, with the source of each figure."""

    def lines() -> Iterator[Line]:
        own = target.trimmed.file
        yield Line(("minbuild, this build", own, "1 x", target.target), "total")
        for peer in peers():
            yield Line((peer.name, peer.bytes, times(peer, own), peer.source))

    return Table(
        "peers",
        "Beside other trainers",
        "Stripped libraries. The others are x86-64 builds of an MLP trainer, or of everything.",
        ("Trainer ", "Bytes", "Size", "Source "),
        tuple(lines()),
    )
