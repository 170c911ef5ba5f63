"""The tables of the parameter-space analysis, a module for each kind."""
