"""ones-agent: a GPU node's telemetry, and the door through which its jobs report."""
