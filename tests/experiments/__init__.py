"""Tests of the experiments in tools/experiments."""
