"""SizeReport -> console, JSON, Markdown, HTML: one formatter each, all fed by the same tables.

`report_tables` makes the tables once; formatters only lay them out. Numbers are computed in `analysis/`, and a new
field appears in `schemas/` as well, which promises the JSON.
"""
