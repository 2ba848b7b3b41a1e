"""Texts of a program that are made when they are read: printing them can cost more than a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


class LazyTexts(Mapping[str, str]):
    """Texts by name; each is made once, at its first reading."""

    def __init__(self, makers: Mapping[str, Callable[[], str]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def joined(self, other: LazyTexts) -> LazyTexts:
        """The texts of both, none of them made by this."""
        joined = LazyTexts({**self._makers, **other._makers})
        joined._made = {**self._made, **other._made}
        return joined
