"""Models: adapters for the providers' APIs, and the actor that retries and limits.

An adapter is loaded with the first model of its provider, and loads that one's SDK on first use.
"""
