"""Replays: the daemon's round on a simulated cluster and a virtual clock."""
