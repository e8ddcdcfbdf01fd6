"""The programs: onesd, ones-agent, ones-release, onesctl."""
