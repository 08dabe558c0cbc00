"""Taking up what the end of the last host cut off: what goes on, what does not, and why."""
