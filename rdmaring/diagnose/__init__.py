"""What is wrong, and why: these modules return records and print nothing."""
