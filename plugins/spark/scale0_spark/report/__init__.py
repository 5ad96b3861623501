"""Tables as one page with charts, and as pictures."""
