"""The long-lived process of `sagda join`: Flower's SuperNode behind sagda's guards.

`supernode` starts this process as `python -m sagda.federation.flower.node`. The options
are those of Flower's command `flower-supernode`.
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
