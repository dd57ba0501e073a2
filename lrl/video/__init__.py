"""Films of agents: what there is to see, what they expect of each action, and what they do."""
