"""For the code of workers: torch's process group, and smaller gradients."""
