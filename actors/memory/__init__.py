"""What agents remember of the people they talk with: a full-text index beside the transcripts."""
