"""Everything that an operator should look at now: rules as data, evaluated over the status of the fleet."""
