"""What every other part of lovec uses: errors, settings, files, provenance, progress, HTTP calls, the hub, plugins."""
