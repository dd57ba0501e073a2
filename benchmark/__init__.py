"""Other libraries on the same work, beside lrl: `python -m benchmark.compare TASK`."""
