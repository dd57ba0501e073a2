"""Run the attacks."""

from benchmark.chaos.scenarios import main

main()
