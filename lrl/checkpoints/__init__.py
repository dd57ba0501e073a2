"""What a run leaves: checkpoints, saved replays, where they lie, and whether they fit."""
