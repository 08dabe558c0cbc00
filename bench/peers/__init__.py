"""The peers: each module does the kernel rows in one other library, and imports only that."""
