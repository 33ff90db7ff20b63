"""Replaying request traces through the production router, over simulated workers."""
