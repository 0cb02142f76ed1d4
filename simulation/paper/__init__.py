"""The paper's figures and tables: run all of it, and turn run folders into compact results."""
