"""What `make docs` makes of `docs/`; nothing here is installed."""
