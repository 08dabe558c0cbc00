"""Which tools may be called: the rules, the limits, and their engines."""
