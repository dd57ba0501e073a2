"""A module whose import says so, and takes a minute."""

import sys
import time

sys.stdout.write("importing\n")
sys.stdout.flush()
time.sleep(60)
