"""The peers: each module does the kernel rows, or a turn, in one other library only."""
