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
    """The artifacts need operators, types or features that no kernel has."""

    exit_code = 3

    def __init__(self, findings: list[str]) -> None:
        """Keep all `findings`, not the first alone, so that one run shows them."""
        self.findings = tuple(printable(finding) for finding in findings)
        super().__init__("\n".join(self.findings))


class ToolchainFailed(MinbuildError):
    """A compiler or linker failed, or its output did not pass the checks."""

    exit_code = 4


class OverBudget(MinbuildError):
    """The result is larger than the user allows."""

    exit_code = 5


class VerificationFailed(MinbuildError):
    """The trimmed trainer does not compute the numbers of the full one or of the reference, gradients differ from
    finite differences, or `--require-proof` refuses a target that is NOT PROVEN."""

    exit_code = 6
