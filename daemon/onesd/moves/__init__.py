"""Moves under way: journalled, carried out step by step."""
