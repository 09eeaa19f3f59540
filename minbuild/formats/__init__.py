"""Readers of ELF, Mach-O, PE, WebAssembly and static libraries. Every read is checked against the file's size.

`detect` is the entry: it chooses the reader by the first bytes and returns an `ir.Binary`. A new format is a module
here and one entry in `detect`. Damaged files raise BadInput; no reader starts a process.
"""
