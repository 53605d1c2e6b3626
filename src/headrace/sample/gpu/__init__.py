"""A sampler on a GPU: kernels, the memory they work in, and a graph that is brought there."""
