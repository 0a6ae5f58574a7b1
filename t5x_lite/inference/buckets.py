"""Round row lengths up in inference, so that few programs are compiled."""

_SHORTEST = 16


def bucket_length(length: int, longest: int | None = None) -> int:
    """Round a length up to a power of two: at least 16 and, if given, at most `longest`.

    A length that is already above `longest` is returned unchanged.

    >>> bucket_length(3), bucket_length(17), bucket_length(17, longest=20)
    (16, 32, 20)
    """
    power_of_two = max(_SHORTEST, 1 << (length - 1).bit_length())
    return power_of_two if longest is None else max(min(power_of_two, longest), length)
