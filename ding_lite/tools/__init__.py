"""Commands that look at runs and environments from outside."""
