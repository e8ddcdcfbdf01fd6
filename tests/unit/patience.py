"""How long tests wait for what is sure to come; only what never comes takes so long."""

PATIENCE = 300.0  # seconds: on a machine with far more to do than cores a minute is little
