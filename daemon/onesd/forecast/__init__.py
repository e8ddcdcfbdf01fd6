"""What would become of one more job: the rounds to come, foreseen."""
