"""Taking an agent along: a policy for scripts, and files for programs that know nothing of lrl."""
