"""SQLite storage: one writer, read-only connections, and one actor class for each group of tables.

Doors: ``location.Location``, ``writer.Writer``, ``readers.Readers``, and the stores. Only hosting,
telemetry, recovery and the gateway's server import them; the others use messages of ``protocols``.
"""
