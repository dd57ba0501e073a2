"""Benchmarks: each module runs with `python -m` and prints what it measured."""
