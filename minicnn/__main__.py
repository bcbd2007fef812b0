"""`python -m minicnn`"""

import sys

from minicnn.cli import main

sys.exit(main())
