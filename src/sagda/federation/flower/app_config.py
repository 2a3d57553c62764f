"""The app that Flower runs, which contains no code, and its environment variables.

The app is a single pyproject.toml. It names the functions of the installed module
`sagda.federation.flower.apps`, which does the work. `superlink` submits this app to
Flower. `guards` refuses any other app at a site.
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
MODEL = "SAGDA_MODEL"  # the user's own model, as FILE.py:FUNCTION
