"""PROVEN or NOT PROVEN: the verdict on every target, in the same words in every form of the report."""

from __future__ import annotations

from minbuild.ir.size_report import SizeReport, TargetReport

PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"
_NO_PROOF = "the proof was not run."


def is_proven(target: TargetReport) -> bool:
    """False for a target whose library was not run, or whose run proves nothing."""
    return target.verification is not None and target.verification.proven


def verdict(target: TargetReport) -> str:
    """PROVEN or NOT PROVEN."""
    return PROVEN if is_proven(target) else NOT_PROVEN


def reason(target: TargetReport) -> str:
    """Why a target is NOT PROVEN, with the cure; empty for a proven one."""
    if is_proven(target):
        return ""
    return (target.verification.reason if target.verification else "") or _NO_PROOF


def proof(target: TargetReport) -> str:
    """The verdict and its grounds in one text, with the worst deviation where a reference was given."""
    if not is_proven(target):
        return f"{NOT_PROVEN}: {reason(target)}"
    found = target.verification
    assert found is not None
    measured = (
        "" if found.worst is None else f" Worst deviation: {found.worst:.3g} times the reference's own noise."
    )
    return f"{PROVEN}: {found.text}{measured}"


def verdicts(report: SizeReport) -> str:
    """All verdicts in one line: the targets that are NOT PROVEN stand first."""
    groups = [
        (word, [t.target for t in report.targets if verdict(t) == word]) for word in (NOT_PROVEN, PROVEN)
    ]
    return "; ".join(f"{word} on {', '.join(names)}" for word, names in groups if names)
