"""Telemetry: events, subscriptions, traces and the error channel.

Doors: ``event_bus.Publisher``, ``subscription.subscribe``, ``tracer.Tracer``,
``error_channel.ErrorChannel``, ``exporter.Exporter``.
"""
