"""The real server in a real browser."""
