"""Measurements, one command for all of them: `python -m benchmarks NAME`."""
