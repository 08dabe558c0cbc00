"""Teams: several agents with a lead, a folder and a task board in common."""
