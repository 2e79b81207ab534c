"""Any rows of a split, in bounded memory: of parquet, whole row groups are read, and the last few are kept."""

from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from .image_sources import Row, Source, is_parquet, naming, open_parquet

HELD_BYTES = 256 * 2**20  # of rows that are not decoded, in each process; at least one row group


class Group(NamedTuple):
    """Rows that are read together."""

    table: Any
    number: int | None  # of the row group; None if the table is there for any row
    first: int  # row of the table
    rows: int
    bytes: int


class RowReader:
    """
    Args:
        source: the split.

    Attributes:
        starts: the first row of each group, and at the end the number of rows.
        window: how many groups are kept.
    """

    def __init__(self, source: Source):
        self.source = source
        self.metadata: dict[Any, Any] = {}
        self.groups = [group for table in source.tables for group in self._groups(table)]
        self.starts = [0, *accumulate(group.rows for group in self.groups)]
        self.by_groups = any(group.number is not None for group in self.groups)
        largest = max((group.bytes for group in self.groups), default=0)
        self.window = max(1, HELD_BYTES // max(1, largest))
        self.held_bytes = min(self.window, len(self.groups)) * largest
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, row: int) -> Row:
        at = bisect_right(self.starts, row) - 1
        group, index = self.groups[at], row - self.starts[at]
        if group.number is None:
            record = self._columns_of(group.table, index)
        else:
            record = self._rows_of(at).slice(index, 1).to_pylist()[0]
        return self.source.row_of(group.table, group.first + index, record)

    @cached_property
    def _lock(self) -> Lock:
        return Lock()

    def __getstate__(self) -> dict:
        """For workers that are not forked: without the lock, and what was read."""
        state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
        return state | {"_kept": OrderedDict()}

    def _groups(self, table) -> list[Group]:
        if not is_parquet(table):
            return [Group(table, None, 0, len(table), 0)]
        with naming(table), open_parquet(table) as file:
            self.metadata[table] = found = file.metadata
        parts = [found.row_group(i) for i in range(found.num_row_groups)]
        firsts = accumulate((part.num_rows for part in parts[:-1]), initial=0)
        return [
            Group(table, i, first, part.num_rows, self._bytes(part))
            for i, (first, part) in enumerate(zip(firsts, parts, strict=False))
        ]

    def _bytes(self, part) -> int:
        columns = (part.column(i) for i in range(part.num_columns))
        named = {self.source.image_column, self.source.label_column}
        return sum(x.total_uncompressed_size for x in columns if x.path_in_schema.split(".")[0] in named)

    def _columns_of(self, table, index: int) -> dict:
        columns = [self.source.image_column, self.source.label_column]
        if isinstance(table, pa.Table):
            return table.select(columns).slice(index, 1).to_pylist()[0]
        return table.select_columns(columns).with_format("arrow")[index].to_pylist()[0]

    def _rows_of(self, at: int) -> pa.Table:
        with self._lock:
            if at not in self._kept:
                while len(self._kept) >= self.window:
                    self._kept.popitem(last=False)
                group = self.groups[at]
                columns = [self.source.image_column, self.source.label_column]
                with naming(group.table), open_parquet(group.table, self.metadata[group.table]) as file:
                    self._kept[at] = file.read_row_group(group.number, columns)
            self._kept.move_to_end(at)
            return self._kept[at]


class Blocks(NamedTuple):
    """Which samples are read together: an order that goes through `window` blocks at a time reads each once."""

    starts: torch.Tensor  # int64 (blocks + 1,): the first sample of each, and at the end their number
    window: int

    def near(self, samples: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """For each of these samples another in its own block, chosen by any number; itself if that is the number."""
        block = torch.searchsorted(self.starts, samples, right=True) - 1
        first, length = self.starts[block], self.starts.diff()[block]
        return torch.where(others == samples, samples, first + others % length)

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """All samples: blocks in random order, and the samples of each `window` of them in random order."""
        parts = torch.arange(int(self.starts[-1])).tensor_split(self.starts[1:-1])
        windows = torch.randperm(len(parts), generator=generator).split(self.window)
        samples = (torch.cat([parts[i] for i in window.tolist()]) for window in windows)
        return torch.cat([x[torch.randperm(len(x), generator=generator)] for x in samples])
