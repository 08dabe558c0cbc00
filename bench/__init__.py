"""Benchmarks: peers side by side in one run, medians of interleaved rounds, versions. Ratios count.

This package and :mod:`bench.peers` import nothing but the standard library and the peer itself,
so that a peer can be measured in an environment that has no motet.
"""
