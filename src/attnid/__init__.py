"""How many of an attention layer's parameters mean anything, and what optimisers do with the rest."""

__version__ = "0.1.0"
