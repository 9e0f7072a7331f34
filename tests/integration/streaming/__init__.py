"""A package, so that fixtures of its scope end with it: else they would last for the session."""
