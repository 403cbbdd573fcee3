"""Small single-node studies: what fits, what a layer costs, whether an order or a merge pays."""
