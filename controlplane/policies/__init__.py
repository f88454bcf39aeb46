"""The configuration: tenants, tiers, quotas, limits and dependencies."""
