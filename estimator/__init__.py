"""Estimator: from observations to a job's speed at a size and its remaining work. Pure."""
