"""`python -m graphene doctor` and `python -m graphene cache`."""

import sys

from graphene.cli import main

sys.exit(main(sys.argv[1:]))
