"""Attacks on everything that is promised: `python -m benchmark.chaos` (or `make chaos`)."""
