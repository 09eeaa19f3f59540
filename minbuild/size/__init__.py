"""Binary formats, attribution of every byte, and the report's numbers."""
