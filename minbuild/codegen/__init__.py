"""Plan to Package: the text and bytes of every file in `dist/`. Only `atomic_write` touches the disk.

`sources` chooses device sources, `compiled_plan` writes the plan as C++, `bindings` the wrappers for other languages.
Text is rendered from `templates/`; change a file of the package there first.
"""
