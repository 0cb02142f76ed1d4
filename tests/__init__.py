"""A package by file, so that no installed package of this name comes before it."""
