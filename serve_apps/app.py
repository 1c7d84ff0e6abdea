"""The Ray Serve application: ingress, encoder, decoder engine.

serve.run(build_app(ServerSettings(checkpoint=Path("checkpoint"))))
"""

from __future__ import annotations

from ray.serve import Application

from serve_apps.deployments.encoder import encoder_deployment
from serve_apps.deployments.engine import engine_deployment
from serve_apps.deployments.ingress import ingress_deployment
from serve_apps.settings import ServerSettings


def build_app(settings: ServerSettings) -> Application:
    """The application for these settings. Raises ValueError when the folder holds no checkpoint."""
    settings = settings.resolved()
    return ingress_deployment(settings, encoder_deployment(settings), engine_deployment(settings))
