"""onesctl: what users and admins ask of onesd."""
