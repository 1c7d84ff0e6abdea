"""The Ray Serve deployments: ingress, image encoder, decoder engine. Import the modules directly."""
