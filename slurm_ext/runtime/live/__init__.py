"""Live resizing: a running training grows and shrinks, and no surviving worker is restarted.

`terms` says what there is, `generation` is the protocol as a pure state machine, `vote` its part in
each worker; the launchers are `base`, `satellite` and `home`, the workers' side is `member`.
"""
