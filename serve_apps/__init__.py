"""Everything that knows Ray, HTTP or a terminal: the API, the deployments, the benchmarks, the CLI."""
