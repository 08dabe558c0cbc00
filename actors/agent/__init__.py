"""What an agent is, and the turn it takes."""
