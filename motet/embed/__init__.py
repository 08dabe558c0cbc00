"""Hosts inside programs that do not run Trio: threads, asyncio, guest mode.

Doors: ``thread.HostThread``, ``asyncio_host.AsyncioHost`` and ``asyncio_host.guest``.
"""
