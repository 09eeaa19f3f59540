"""FlatBuffers by schema: `schema` parses `.fbs` text, `codec` decodes hostile bytes and encodes plain data.

The library `flatbuffers` is imported in `codec` only. Formats themselves are text in `schemas/`.
"""
