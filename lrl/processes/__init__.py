"""How processes live: started, watched, ended; no reinforcement learning."""
