"""Measurements of the single parts of lrl: `python -m benchmark.parts`, and each module."""
