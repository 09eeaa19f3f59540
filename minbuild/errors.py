"""Every failure a user can see, each with its exit code. The text says where, what, and the cure."""

from __future__ import annotations

from minbuild.escape import printable


class MinbuildError(Exception):
    """Base of all failures that are the input's or the environment's, not ours."""

    exit_code = 1


class BadInput(MinbuildError):
    """A file, option or value the user gave is missing, damaged or contradictory."""

    exit_code = 2


class Unsupported(MinbuildError):
    """The artifacts ask for operators, types or features that no kernel offers. Holds every finding, not the first."""

    exit_code = 3

    def __init__(self, findings: list[str]) -> None:
        self.findings = tuple(printable(finding) for finding in findings)
        super().__init__("\n".join(self.findings))


class ToolchainFailed(MinbuildError):
    """A compiler, linker or the check of what they produced said no."""

    exit_code = 4


class OverBudget(MinbuildError):
    """The result is larger than the user allows."""

    exit_code = 5


class VerificationFailed(MinbuildError):
    """The trimmed trainer does not compute the numbers of the full one, or of the reference."""

    exit_code = 6
