"""What a setting may name, and what it becomes."""
