"""Analysis of linked libraries and reports: attribution of every byte, history, differences, budgets.

`formats/` reads binary formats; `whatif/` builds variants of a library to measure what options are worth.
"""
