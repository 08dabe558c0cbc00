"""What agents remember of the people they talk with: a full-text index beside the transcripts."""

from __future__ import annotations


# Agents beyond their code: stored ones, their resolution, and the files and folders of users.


# Skills: folders with a SKILL.md, listed to an agent or searched, and read when needed.


# Teams: several agents with a lead, a folder and a task board in common.


# Answers of a declared type: how they are asked for, read, and repaired.
