"""Tools: how they are made, described, checked and executed."""
