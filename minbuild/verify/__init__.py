"""Verification: a trimmed trainer computes what the full one, another target and a recorded trajectory say."""
