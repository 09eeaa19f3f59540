"""The error of several tools that run at a time when one of them fails."""

from pathlib import Path

import pytest

from minbuild.errors import ToolchainFailed
from minbuild.toolchain.process import Processes, clean_environment, failure


def test_the_error_is_that_of_the_tool_that_failed_and_not_of_those_that_were_stopped(tmp_path: Path) -> None:
    """Two libraries at a time, each of two objects: while the first one's compilers run, one of the second fails."""
    environment = clean_environment({})

    with Processes(most=4) as processes:

        def compiled(command: tuple[str, ...]) -> None:
            result = processes.run(command, tmp_path, environment)
            if result.code:
                raise failure("wrong.cc", command, result, "Correct it.")

        def library(commands: tuple[tuple[str, ...], ...]) -> None:
            processes.map(compiled, commands, 2)

        running = ("sleep", "60")
        wrong = ("sh", "-c", "sleep 0.2; echo 'error: no such type' >&2; exit 1")
        with pytest.raises(ToolchainFailed, match="no such type"):
            processes.map(library, ((running, running), (running, wrong)), 2)
        with pytest.raises(ToolchainFailed, match="no such type"):
            processes.map(library, ((running,),), 1)
