"""`minbuild scan`."""

from __future__ import annotations

import json

from rich.console import Console

from minbuild.cli.progress import Artifacts, Json, OpsFolders, Verbose, exit_with_code
from minbuild.escape import for_json
from minbuild.planning import scan as scanning


def scan(
    artifacts: Artifacts, ops_dir: OpsFolders = None, json_output: Json = False, verbose: Verbose = False
) -> None:
    """List the operators of ARTIFACTS, and every unsupported node."""
    with exit_with_code(verbose):
        result = scanning.scan(artifacts, tuple(ops_dir or ()))
        if json_output:
            print(for_json(json.dumps(scanning.as_dict(result), indent=1, ensure_ascii=False)))
        else:
            screen = Console(highlight=False)
            scanning.print_scan(result, screen if screen.is_terminal else Console(highlight=False, width=160))
        scanning.check(result)
