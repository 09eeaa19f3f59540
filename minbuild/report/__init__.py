"""SizeReport -> console, JSON, Markdown, HTML: one formatter each, all fed by the same tables."""
