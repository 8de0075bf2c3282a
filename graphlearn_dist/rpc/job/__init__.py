"""Who is in a job: the registry, a member's view of it, and what members agree on through it."""
