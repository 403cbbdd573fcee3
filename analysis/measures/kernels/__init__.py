"""Which kernels ran, what did they cost, and what bounds them?"""
