"""Hostile input for each parser and each door; see docs/security.md."""
