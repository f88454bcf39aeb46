"""Prices past calls again: what the ledger says they cost, and what is spent of budgets."""
