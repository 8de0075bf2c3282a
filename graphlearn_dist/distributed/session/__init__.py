"""What a process does for its job beside batches: its group, words of the launcher, and taking leave."""
