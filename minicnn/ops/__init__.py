"""One file per operator: attributes, shapes, variants, cost, reference, cases. Found by `minicnn.registry`."""
