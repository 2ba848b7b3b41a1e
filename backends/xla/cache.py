"""Compiled programs by key, the least recently used dropped first."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from tkcc.ir.graph import Function, Module
from tkcc.ir.hashing import function_hash

Item = TypeVar("Item")


class LeastRecentlyUsed(Generic[Item]):
    """At most `limit` items by key. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self._limit = limit
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Item | None:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def put(self, key: str, item: Item) -> None:
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            while len(self._items) > self._limit:
                self._items.popitem(last=False)

    def __len__(self) -> int:
        return len(self._items)


def function_key(function: Function) -> str:
    """Structure and the names it is called by; `function_hash` leaves names out."""
    names = [value.name for value in function.inputs], list(function.output_names)
    text = json.dumps([function_hash(function), *names])
    return hashlib.sha256(text.encode()).hexdigest()


def program_key(module: Module, *parts: str) -> str:
    """SHA-256 (hex) over the module's functions, with their names, and further texts."""
    functions = {name: function_key(f) for name, f in module.functions.items()}
    text = json.dumps([functions, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
