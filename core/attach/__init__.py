"""Other people's servers: read their metrics pages and see their scheduler at work."""
