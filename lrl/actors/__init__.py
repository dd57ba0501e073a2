"""Where experience is born: actors, their exploration, and the manager that keeps them alive."""
