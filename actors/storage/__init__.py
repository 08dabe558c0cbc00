"""SQLite, owned by one writer: where state lives, the writer's actor, readers, the schema."""
