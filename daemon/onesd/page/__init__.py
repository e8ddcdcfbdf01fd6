"""The page that onesd serves to browsers."""
