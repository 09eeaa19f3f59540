"""Analysis of linked libraries and reports: attribution of every byte, history, differences, budgets.

`whatif/` builds variants of a library to measure what options are worth. Results go into `ir/size_report`; text and
tables belong in `report/`. Imported by `cli` and `report`; binary formats are read by `formats/`.
"""
