"""Whether a machine and an agent are ready for a run; asked before one begins."""
