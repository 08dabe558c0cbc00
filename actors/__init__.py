"""Who plays: the agent host, its sessions, tools, models, stores and gateway."""
