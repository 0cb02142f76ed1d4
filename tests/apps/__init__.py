"""Flower apps of strangers, which know nothing of Perennial; tests and benchmarks copy them into folders."""
