"""The commands of `python -m graphene`."""

import sys

from graphene.cli import main

sys.exit(main(sys.argv[1:]))
