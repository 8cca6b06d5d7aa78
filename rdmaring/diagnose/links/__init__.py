"""What each edge between the ranks carries, and which one is slow."""
