"""What choices are made by: constants, where they come from, and whether all ranks have the same. See docs/TUNING.md."""
