"""An operator: the user's own Python object, with state, as a stage of a job.

For what is not a query: an online model, a filter, a parser, an algorithm. Its class has

- ``process(self, table)``: one epoch's rows as an Arrow table, for every input one; returns what comes of them;
- ``save(self) -> bytes`` and ``restore(self, saved)``: its state. Both or neither: without them its attributes are
  pickled;
- ``missed(self, rows, epochs)``, if it wants to know: under ``us.Checkpoint``, after ``restore``, how many epochs are
  not in the state, and how many rows of each input, by its name, came in them. What would have expired meanwhile can
  then be let go of. Where the producer was lost as well, rows are as many as was usual;
- ``needs_all_input = True`` where one row that is missing would spoil all that comes after it. ``us.Checkpoint`` then
  loses nothing of its input, and what is before it may not lose any either.

The object lives in a process of its own beside the host, so that a crash, a leak or the interpreter's lock is its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from understudy.core.operators import OperatorClass
from understudy.schemas import arrow_schema
from understudy.windowed.base import Windowed


@dataclass(frozen=True)
class Operator:
    make: Callable[[], Any]
    """Makes the object: usually its class."""
    schema: pa.Schema
    """Of what ``process`` returns."""
    stateless: bool = False
    """What it makes of an epoch depends on that epoch alone: it can be rebuilt from nothing."""
    judged: OperatorClass | None = None
    """What it remembers, where its code is known: an operator that comes with it."""
    needs_cut_times: bool = False
    """It is given the time at which each epoch was cut: a window by time that names no column."""
    needs_all_input: bool = False
    """With a row missing, all that it makes afterwards would be wrong: one that pairs its inputs, for example."""

    @property
    def pairs(self) -> bool:
        """It is a barrier: rebuilt by replay only with the numbers of its rows."""
        return self.judged is not None and self.judged.needs_all_input


def checked(cls: Any, schema: Any, *, inputs: int, stateless: bool) -> Operator:
    """Raises ValueError, naming what is missing."""
    if not inspect.isclass(cls):
        raise ValueError(f"@job.operator decorates a class with a method process(self, table), not {cls!r}")
    if not callable(getattr(cls, "process", None)):
        raise ValueError(f"class {cls.__name__} has no method process(self, table)")
    _check_takes(cls, "process", inputs, "one table for every input")
    _check_takes(cls, "__init__", 0, "nothing: the object is made anew on every host")
    if (hasattr(cls, "save")) != (hasattr(cls, "restore")):
        there, missing = ("save", "restore") if hasattr(cls, "save") else ("restore", "save")
        raise ValueError(f"class {cls.__name__} has {there} but no {missing}; write both, or neither")
    if hasattr(cls, "save"):
        _check_takes(cls, "save", 0, "nothing")
        _check_takes(cls, "restore", 1, "what save returned")
    if hasattr(cls, "missed"):
        _check_takes(cls, "missed", 2, "the rows that are missing, by input, and how many epochs")
    needs_all_input = getattr(cls, "needs_all_input", False)
    if not isinstance(needs_all_input, bool):
        raise ValueError(f"{cls.__name__}.needs_all_input is {needs_all_input!r}; make it True or False")
    return Operator(cls, arrow_schema(schema), stateless, needs_all_input=needs_all_input)


def windowed(make: Callable[[], Windowed], inputs: Sequence[pa.Schema | None] | None, schema: Any) -> Operator:
    """An operator with windows. ``inputs``: what it is given, where that is known; None: what comes of it fits
    ``schema``, as far as anybody knows before it runs. Raises ValueError."""
    made = make()
    known: Any = {
        "judged": made.judged(), "needs_all_input": made.needs_all_input, "needs_cut_times": made.needs_cut_times
    }  # fmt: skip
    if inputs is None:
        return Operator(make, arrow_schema(schema), **known)
    if None in inputs:
        raise ValueError("the columns of an input are known to Spark only; say schema= what comes of it, as DDL")
    found = made.schema(*inputs)
    if schema is not None and arrow_schema(schema) != found:
        raise ValueError(f"schema={schema!r} is not what comes of it: {found.to_string()}; leave it out")
    return Operator(make, found, **known)


def _check_takes(cls: type, name: str, count: int, what: str) -> None:
    method = getattr(cls, name)
    try:
        inspect.signature(method).bind(None, *[None] * count)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}.{name} must take {what} ({error})") from None
    except ValueError:
        pass  # written in C, and says nothing of its arguments
