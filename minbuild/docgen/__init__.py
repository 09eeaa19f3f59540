"""Documentation generated from the code. `python -m minbuild.docgen` rewrites it; tests fail when it is stale."""
