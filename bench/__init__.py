"""Benchmarks of motet and its peers in one run: medians of interleaved rounds, ratios, versions.

This package and :mod:`bench.peers` import only the standard library and the peer itself, so that a
peer can be measured in an environment without motet.
"""
