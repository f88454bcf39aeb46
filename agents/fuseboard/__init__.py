"""Fuseboard's agent: decides every call of a pod, with Redis or without."""
