"""Other libraries on the same work."""
