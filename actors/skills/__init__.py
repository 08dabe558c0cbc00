"""Skills: folders with a SKILL.md, listed to an agent or searched, and read when needed."""
