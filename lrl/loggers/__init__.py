"""What loggers are told of a run, and how they show it."""
