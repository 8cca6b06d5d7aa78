"""What choices are made by: constants, where they come from, and whether ranks agree. See docs/TUNING.md."""
