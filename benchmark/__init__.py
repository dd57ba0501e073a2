"""Other libraries on the same work, beside lrl: `python -m benchmark.peers.compare TASK`."""
