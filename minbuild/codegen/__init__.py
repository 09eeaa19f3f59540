"""Plan to Package: the text and bytes of every file in `dist/`. Only `atomic_write` touches the disk."""
