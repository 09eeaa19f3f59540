"""Analyses that rewrites query: which value owns whose storage, lifetimes, sample loops. They change nothing."""
