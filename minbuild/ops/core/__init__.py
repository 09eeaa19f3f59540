"""The vocabulary of operator definitions: declarations, graph builders, the registry, shared shape rules."""
