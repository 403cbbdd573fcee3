"""FLOPs and bytes of operators, classes of kernels."""
