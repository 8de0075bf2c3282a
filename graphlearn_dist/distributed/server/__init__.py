"""What a server keeps of its clients: producers, memory, who is done."""
