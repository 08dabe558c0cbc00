"""Teams of agents as library code on top of rooms: graphs, plan-and-progress, rooms as members."""
