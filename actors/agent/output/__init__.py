"""Answers of a declared type: how they are asked for, read, and repaired."""
