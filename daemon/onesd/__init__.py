"""The controller daemon: the round, and all that it goes by, does and keeps."""
