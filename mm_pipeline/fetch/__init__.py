"""Media URLs to bytes: http, https, data and file, under the server's limits. Knows no media format."""

from mm_pipeline.fetch.fetcher import FetchedMedia, Fetcher

__all__ = ["FetchedMedia", "Fetcher"]
