"""The engine as a small OpenAI-compatible server: plain Starlette routes, no page."""
