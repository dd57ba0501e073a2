"""`lrl bench`: what the parts of lrl do on this machine; each module also runs with `python -m`."""
