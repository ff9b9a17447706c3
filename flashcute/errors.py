"""One exception for each status of the C API. The message names the call, the argument, what was expected and given."""


class Error(Exception):
    """Base of all that flashcute raises about a call. `status` is the C API's number."""

    status: int = 1


class InternalError(Error, RuntimeError):
    """Something failed that the caller could not know: a launch, an allocation, a broken invariant."""

    status = 1


class NotImplementedByKernelError(Error, NotImplementedError):
    """No kernel of this device can do what was asked. The message has each one's reason."""

    status = 2


class BadParamError(Error, ValueError):
    """An argument has a value that it cannot have."""

    status = 3


class NullPointerError(Error, ValueError):
    """Memory is missing behind a tensor that is not empty, or a declared tensor was not given."""

    status = 4


class UnsupportedDeviceError(Error, RuntimeError):
    """The device is of a type that this build does not serve, or cannot be used from this process."""

    status = 5


class DeviceNotFoundError(Error, RuntimeError):
    """There is no such device, or no driver for it."""

    status = 6


class UnsupportedArchitectureError(Error, RuntimeError):
    """The GPU is older than every kernel of this build."""

    status = 8


class BadDtypeError(Error, TypeError):
    """A tensor has a dtype that it cannot have."""

    status = 10


class BadShapeError(Error, ValueError):
    """A tensor has a shape that it cannot have."""

    status = 11


class BadStridesError(Error, ValueError):
    """A tensor has strides that it cannot have and may not be copied."""

    status = 12


class InsufficientWorkspaceError(Error, ValueError):
    """The workspace given is smaller than AttentionDescriptor.workspace_size."""

    status = 13


_CLASSES: dict[int, type[Error]] = {error.status: error for error in Error.__subclasses__()}


def class_of_status(status: int) -> type[Error]:
    """The exception class of a status; an unknown one is an InternalError."""
    return _CLASSES.get(status, InternalError)
