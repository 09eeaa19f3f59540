"""Documentation generated from the code. `python -m minbuild.docgen` rewrites it; tests fail when it is stale.

One module per generated page. Nothing imports this folder; edit the code or the template that a page comes from,
never the page.
"""
