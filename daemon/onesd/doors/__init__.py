"""Who may ask onesd what, and what is answered."""
