"""What onesd keeps: each table of its database has one owner here."""
