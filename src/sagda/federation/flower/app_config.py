"""What Flower is given to run: an app without code, and its environment variables.

The app's description names the installed `sagda.federation.flower.apps`. `superlink`
hands it in, and `guards` accepts no other app at a site.
"""

from typing import Any

COMPONENTS = {
    "serverapp": "sagda.federation.flower.apps:server",
    "clientapp": "sagda.federation.flower.apps:client",
}
SETTINGS = {"publisher": "sagda", "components": COMPONENTS, "config": {}}
# The content of the app's pyproject.toml.
APP: dict[str, Any] = {
    "project": {
        "name": "sagda-federation",
        "version": "0.1.0",
        "description": "A federation led by sagda.",
        "license": "MIT",
        "dependencies": [],
    },
    "tool": {"flwr": {"app": SETTINGS}},
}
# The ServerApp's process inherits these from the SuperLink.
FOLDER = "SAGDA_FOLDER"  # the run folder
REGISTER = "SAGDA_REGISTER"  # the folder with the sites' public keys
MODEL = "SAGDA_MODEL"  # the model that is the user's code, FILE.py:FUNCTION
