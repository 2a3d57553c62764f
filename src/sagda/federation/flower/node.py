"""The long-lived process of `sagda join`: Flower's SuperNode behind sagda's guards.

`supernode` starts it as `python -m sagda.federation.flower.node`, with the options of
Flower's own `flower-supernode`.
"""

import sys

from sagda.check import BadValue
from sagda.federation.flower.guards import guard_node
from sagda.federation.flower.processes import UNGUARDED

if __name__ == "__main__":
    try:
        guard_node()
    except BadValue as error:
        print(error, file=sys.stderr)
        sys.exit(UNGUARDED)
    from flwr.supernode.cli import flower_supernode

    flower_supernode()
