"""Scores of trained agents: evaluation of checkpoints, statistics, score files."""
