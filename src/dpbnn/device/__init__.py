"""Where and how fast numbers are computed: precision, streams, generators, kernels."""
