"""blockcyclic: A Flower Baseline."""
