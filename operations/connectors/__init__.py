"""Connectors: one folder each, one line each in `registry.py`."""
