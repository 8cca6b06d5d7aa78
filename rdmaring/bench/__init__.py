"""Time collectives and check their results: requests, crafted data, measuring, records. Prints nothing."""
