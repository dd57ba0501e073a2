"""`lrl bench`: whole runs on this machine, and what held each back."""
