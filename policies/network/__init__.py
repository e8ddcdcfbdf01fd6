"""Where jobs sit in the network: costs of placements, and ways of finding good ones (Liquid §2)."""
