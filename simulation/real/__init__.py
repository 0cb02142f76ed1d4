"""Real data that come in cycles: what MM-PSGD and MC-PSGD do there, beside every simpler answer."""
