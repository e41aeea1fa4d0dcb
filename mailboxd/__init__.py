"""The command: puts the processes together for a person at a terminal."""
