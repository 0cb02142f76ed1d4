"""The theorems, measured: MM-PSGD and MC-PSGD on a convex problem whose constants and optima are known."""
