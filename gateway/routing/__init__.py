"""Policies, reservations and the choice of a worker."""
