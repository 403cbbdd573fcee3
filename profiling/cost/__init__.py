"""Arithmetic and traffic of operators, classes of kernels."""
