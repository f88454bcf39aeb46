"""The real Lua against exact oracles, in virtual time, and mutants of it that must not survive."""
