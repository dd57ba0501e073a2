"""Central inference: servers that compute the action values of all actors in batches."""
