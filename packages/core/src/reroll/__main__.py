"""`python -m reroll`."""

from reroll.cli import main

main()
