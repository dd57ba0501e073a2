"""Evaluation: episodes, their loader, and a process that plays them in the background."""
