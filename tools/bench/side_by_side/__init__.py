"""Contenders side by side: everything ``tools/bench/decisions.py`` measures."""
