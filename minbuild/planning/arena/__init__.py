"""Arena layout: lifespans of buffers, placement heuristics, local search, and an independent validator."""
