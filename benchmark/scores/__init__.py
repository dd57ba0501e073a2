"""What recipes reach: campaigns of training runs, their scores and curves."""
