"""Hosts inside of programs that are not Trio's: threads, asyncio, guest mode."""
