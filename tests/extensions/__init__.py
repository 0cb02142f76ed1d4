"""One extension of each kind, written as somebody outside the project would: a file each, with public names alone."""
