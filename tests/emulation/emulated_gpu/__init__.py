"""Emulated GPUs: the emulator of a node, and the pacing of the training processes on it.

Plain standard library. Nothing outside tests/ imports it, and it imports nothing of ONES.
"""
