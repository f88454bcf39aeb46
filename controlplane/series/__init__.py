"""Stored series: figures over time, written by gateways every 10 s and sealed into arrays every hour."""
