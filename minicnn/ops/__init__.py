"""A file an operator: attributes, shapes, variants, cost, reference, cases. Found by `registry`."""
