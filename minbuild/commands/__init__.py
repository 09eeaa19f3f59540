"""The commands, one file each: arguments in, one call, text out."""
