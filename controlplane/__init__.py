"""Fuseboard's control plane."""
