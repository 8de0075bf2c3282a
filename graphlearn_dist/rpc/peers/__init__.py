"""Who is at the other end of a connection, how it is reached, and who is turned away."""
