"""Plans of training on a whole graph: order, type, operations and kernels, each with its cost."""
