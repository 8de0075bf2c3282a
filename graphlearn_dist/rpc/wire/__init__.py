"""GLD1, the wire format: frames, and the values in them. Knows no socket."""
