"""What moves frames: the native engine, its reference in Python, and the threads and loops around them."""
