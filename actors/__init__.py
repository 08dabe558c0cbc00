"""The agent host: sessions, tools, models, stores and gateway, in thirteen packages."""
