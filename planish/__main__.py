"""`python -m planish` is the command `planish`."""
import sys

from planish.cli import main

sys.exit(main())
