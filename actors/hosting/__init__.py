"""A configuration that changes while its host runs."""
