"""Models: adapters for the providers' APIs, and the actor that retries and limits.

Doors: :class:`~motet.actors.models.catalog.ModelCatalog` finds a model by name and
:class:`~motet.actors.models.provider.Models` is the actor that sends its requests. An adapter is
loaded with the first model of its provider, and loads the SDK on its first request.
"""
