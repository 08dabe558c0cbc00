"""The tools that come with motet. The door: ``all_tools.builtin_tools``."""
