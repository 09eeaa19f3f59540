"""Readers of ELF, Mach-O, PE, WebAssembly and static libraries. Every read is checked against the file's size."""
