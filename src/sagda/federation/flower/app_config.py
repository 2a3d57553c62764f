"""The app that a server hands in and a site lets run: a description, and no code."""

APP = """[project]
name = "sagda-federation"
version = "0.1.0"
description = "A federation led by sagda."
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "sagda"

[tool.flwr.app.components]
serverapp = "sagda.federation.flower.apps:server"
clientapp = "sagda.federation.flower.apps:client"

[tool.flwr.app.config]
"""
