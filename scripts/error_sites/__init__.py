"""Where errors are raised, read from the sources: for docs/ERRORS.md, and for the test that wants advice of each."""
