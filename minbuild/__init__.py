"""minbuild: from ONNX Runtime training artifacts to the smallest trainer that computes the same numbers.

`pipeline` reads like the arrow of docs/architecture.md; every folder is one noun or verb of it. At this level stand
only modules that several folders share: errors, escaping, templates, and the files shipped with the package.
"""

__version__ = "0.1.0"
