"""The Ray Serve deployments: ingress, encoder, decoder engine. Import the modules directly."""
