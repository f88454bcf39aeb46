"""Finds and sends alerts of level 3 while a store is down and no worker can."""
