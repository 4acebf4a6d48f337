"""Compiled kernels of the forward pass on a CPU; see `step` for the picture and `backend` for the way in."""
