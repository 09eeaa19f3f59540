"""The way in: `minbuild` and `python -m minbuild`. Loading the commands takes a moment, in which Ctrl-C ends the
program as quietly as later."""

from __future__ import annotations

import sys


def main() -> None:
    """The program."""
    try:
        from minbuild.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
