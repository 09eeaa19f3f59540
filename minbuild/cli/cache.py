"""`minbuild cache`."""

from __future__ import annotations

from typing import Annotated

import typer

from minbuild.cli.progress import Verbose, exit_with_code
from minbuild.options.byte_sizes import size_text
from minbuild.toolchain.cache import user_cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in it.")] = False,
    verbose: Verbose = False,
) -> None:
    """Print where compiled objects are kept, how many, and the limit; or remove them."""
    with exit_with_code(verbose):
        kept = user_cache()
        if clear:
            kept.clear()
        entries = kept.entries()
        size = size_text(sum(entry.size for entry in entries))
        print(f"folder   {kept.root}  (set by MINBUILD_CACHE)")
        print(f"entries  {len(entries)} of {size}")
        print(
            f"limit    {size_text(kept.limit)}; the oldest entries above it are evicted  (set by MINBUILD_CACHE_LIMIT)"
        )
