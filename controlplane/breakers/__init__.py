"""Holds that people put on breakers, and what breakers did."""
