"""What the host did in a stretch of a profile."""

from __future__ import annotations

from typing import Any


def events_within(profile: Any, stretch: str) -> list[str]:
    """Names of the events that began inside a ``record_function`` of some name, on the host or on the device."""
    events = profile.events()
    span = next(event.time_range for event in events if event.name == stretch)
    return [event.name for event in events if span.start <= event.time_range.start <= span.end]


def waits_in(profile: Any, stretch: str) -> list[str]:
    """Of these, the calls for which the host waits for a GPU, and all copies from a GPU to the host."""
    return [name for name in events_within(profile, stretch) if "Synchronize" in name or "DtoH" in name]
