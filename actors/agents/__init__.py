"""Agents beyond their code: stored ones, their resolution, and the files and folders of users."""
