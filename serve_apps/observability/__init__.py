"""Metrics of a server: what is measured, how it gets out, and what to look at.

`dashboard.json` is for Grafana 11, `alerts.yml` for Prometheus; both take GET /metrics of the server as source.
"""
