"""SQLite storage: one writer, read-only connections, and one actor class for each group of tables.

Doors: ``location.Location``, ``writer.Writer``, ``readers.Readers``, and the stores. Tools, agents,
hooks, models and rooms import none of them: they send messages of ``protocols``.
"""
