"""What is allowed: tenants, tiers, quotas, dependencies, and the functions that edit them."""
