"""Build options as one table, the user's settings file, and the graphs a trainer contains.

The table in `build_options` drives command line, settings, documentation and size waterfall; add an option there.
"""
