"""What operator definitions are written in: declarations, graph builders, the registry, shared shape rules."""
