"""Single-node studies: what fits into memory, what a layer costs, whether an order or a merge is faster."""
