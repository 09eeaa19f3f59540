"""Parameters that PyTorch's exporter folded into constants, as parameters again.

`unfold` is where it begins; the other modules are its parts. The exporter computes what depends on parameters alone,
keeps one of several equal parameters, and leaves out additions of zeros.
"""
