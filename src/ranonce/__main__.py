"""`python -m ranonce`: the command line, where no script is installed."""

from ranonce.cli import entry

entry()
