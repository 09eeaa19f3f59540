"""The command line: `main` holds the program, every command has one file. Arguments in, one call, text out.

No other room imports typer; commands hold no logic of their own.
"""
