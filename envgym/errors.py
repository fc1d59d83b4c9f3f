"""Errors that envgym raises for anything but the caller's own input.

A mistake in what the caller passed is a `ValueError` (errors that are both say so). A policy's mistakes are
observations and a limit reached is a truncation: neither is an exception.
"""


class EnvGymError(Exception):
    """Root of every error of this library."""


class UnknownIdError(EnvGymError, ValueError):
    """No environment or agent is registered under that id; the message suggests the nearest one."""


class EpisodeOrderError(EnvGymError):
    """`step` was called before `reset` or after the episode had ended."""


class UnplayableError(EnvGymError, ValueError):
    """An agent cannot play an environment at all, for example because the first prompt is longer than its context."""


class RewardError(EnvGymError):
    """A reward is not finite, or its components do not sum to it."""


class CollectionError(EnvGymError):
    """Too many episodes failed for the collection to go on; the message names the commonest failure."""


class ModelError(EnvGymError, ValueError):
    """A model folder is missing, incomplete, or does not fit its tokenizer or the request."""


class CheckpointError(EnvGymError):
    """A checkpoint is missing, incomplete or belongs to another configuration."""


class WeightSyncError(EnvGymError):
    """Weights sent to a policy do not match what it holds (names, shapes), or arrived incompletely."""


class MissingDependencyError(EnvGymError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""
