"""Group chats. Doors: ``definition.Room``, ``opening.open_room``, ``api.RoomApi``."""
