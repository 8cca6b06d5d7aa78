"""Seeded faults in real jobs, and whether the library says what was done to them."""
