"""Runs under runs: sub-agents that are called, that work beside their caller, or take over."""
