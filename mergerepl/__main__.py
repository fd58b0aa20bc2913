"""`python -m mergerepl`."""

from mergerepl.cli.main import main

main(prog_name="mergerepl")
