"""Readers of workload files: who asked for how many tokens, and when. `reader.read_trace` is the door."""
