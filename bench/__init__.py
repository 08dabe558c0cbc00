"""Benchmarks: peers side by side in one run, medians and ratios, versions. Ratios count."""
