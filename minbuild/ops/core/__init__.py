"""The vocabulary of operator definitions: declarations, graph builders, the registry, shared shape rules.

Every family imports from here, and this folder imports no family. Start at `definition.Op`, whose fields are the hooks
of an operator; `kernels/README.md` explains them in the order in which an author needs them.
"""
