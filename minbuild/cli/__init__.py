"""The command line: `main` holds the program, every command has one file. Arguments in, one call, text out.

No other folder imports typer, and no other folder except `docgen` imports this one. Commands hold no logic of their
own; an option of the build is added to the table in `options/build_options`, not here.
"""
