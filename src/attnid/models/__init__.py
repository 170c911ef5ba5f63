"""Attention layers of models that others wrote: found, measured, rebalanced and compared."""
