"""The forward pass on a CUDA device: Triton kernels over the block table, decode steps as CUDA graphs."""
