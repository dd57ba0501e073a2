"""All that needs a GPU, in one script, and what it found."""
