"""Checks that look at more than one part, before anything starts."""
