"""The memory's parts: how much is filled after how many tokens, how calls fall into pieces, what moves where."""

from itertools import chain

import pytest
import torch
from torch.testing import assert_close

from hf_efficient.models.compressive_performer.fast.reading import needed_depths
from hf_efficient.models.compressive_performer.memory import (
    Memory,
    MemoryLengths,
    append,
    filled_slots,
    move_on,
    put_rows,
    write_segment,
)
from hf_efficient.models.compressive_performer.schedule import Schedule

LENGTHS = [
    MemoryLengths(8, 8, 6, 2),
    MemoryLengths(8, 20, 3, 4),
    MemoryLengths(8, 4, 9, 2),
    MemoryLengths(6, 0, 5, 3),
    MemoryLengths(5, 7, 0, 4),
    MemoryLengths(3, 0, 0, 1),
]


def simulate(lengths, tokens):
    """The three queues after so many tokens, by hand; a slot is the list of tokens it stands for."""
    compressed, recent, segment = [], [], []
    for token in range(tokens):
        segment.append(token)
        if len(segment) == lengths.segment:
            queue, segment = recent + segment, []
            leaving = max(0, len(queue) - lengths.recent)
            old, recent = queue[:leaving], queue[leaving:]
            if lengths.compressed:
                slots = [old[i : i + lengths.rate] for i in range(0, len(old), lengths.rate)]
                compressed = (compressed + slots)[-lengths.compressed :]
    return compressed, recent, segment


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_what_is_filled_follows_from_the_tokens_seen(lengths):
    for tokens in range(80):
        compressed, recent, segment = simulate(lengths, tokens)
        assert lengths.compressed_after(tokens) == len(compressed)
        assert lengths.recent_after(tokens) == len(recent)
        assert lengths.open_after(tokens) == len(segment)
        assert not compressed or len(recent) == lengths.recent, "so positions have no gap"


def test_rows_are_sorted_by_what_they_have_filled():
    lengths = MemoryLengths(4, 4, 3, 2)
    assert lengths.rows_alike([0, 1, 3, 4], [3, 11, 100, 2, 9]) == {(0, 0): [0, 3], (2, 4): [1, 4]}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_positions_are_where_the_tokens_were(lengths):
    positions = lengths.positions()
    tokens = lengths.segment * 20  # all is full
    compressed, recent, _ = simulate(lengths, tokens)
    slots = [[token - tokens for token in slot] for slot in compressed]
    centres = [sum(slot) / len(slot) for slot in slots]
    expected = centres + [token - tokens for token in recent] + list(range(lengths.segment))
    assert positions.tolist() == expected


def flags(*rows):
    return torch.tensor([[c == "x" for c in row] for row in rows])


MASKS = {
    "none": None,
    "left": flags("...xxxxxxxxxxxxxxxxxxx", "xxxxxxxxxxxxxxxxxxxxxx", "......................"),
    "right": flags("xxxxxxxxxxxxxx........", "xxxxxxxxxxxxxxxxxxxxxx", "x....................."),
    "holes": flags("x.x.xxxx..xxxxxxxxxx.x", "xxxxx.xxxxxxxx.xxxxxxx", ".x.x.x.x.x.x.x.x.x.x.x"),
}


@pytest.mark.parametrize("seen", [[0, 0, 0], [3, 3, 3], [0, 7, 12], [4, 9, 24], [8, 16, 40]], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_no_piece_passes_the_end_of_a_segment(mask, seen):
    mask, T = MASKS[mask], 5
    schedule = Schedule(seen, 22, T, mask)
    real = torch.ones(3, 22, dtype=torch.bool) if mask is None else mask
    assert [c for piece in schedule.pieces for c in range(piece.columns.start, piece.columns.stop)] == list(range(22))
    counts = list(seen)
    for piece in schedule.pieces:
        assert piece.seen == counts
        part = real[:, piece.columns]
        assert piece.real == part.sum(1).tolist()
        assert (piece.key_mask is None and part.all()) or torch.equal(piece.key_mask, part)
        for row, n in enumerate(piece.real):
            assert n <= T - counts[row] % T
            counts[row] += n
        full = [row for row, n in enumerate(piece.real) if n and counts[row] % T == 0]
        assert piece.full_rows(T) == full
    assert schedule.after == counts
    for row in range(3):
        expected = [(seen[row] + i) % T for i in range(int(real[row].sum()))]
        assert schedule.positions("cpu").expand(3, 22)[row][real[row]].tolist() == expected


def test_aligned_rows_take_a_piece_per_segment():
    schedule = Schedule([3, 3], 22, 5)
    assert [(piece.columns.start, piece.columns.stop) for piece in schedule.pieces] == [
        *((0, 2), (2, 7), (7, 12), (12, 17), (17, 22)),
    ]
    assert schedule.aligned
    assert Schedule([3, 8], 22, 5).aligned
    assert not Schedule([3, 7], 22, 5).aligned
    assert Schedule([3, 8], 2, 5).positions("cpu").tolist() == [3, 4]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("seen", [0, 5])
@pytest.mark.parametrize("wanted", [1, 13, 100])
def test_a_piece_passes_the_layers_whose_output_matters(lengths, seen, wanted):
    """By following back, token by token, what the last outputs and the memory after them are made of."""
    layers, columns = 3, 100
    schedule = Schedule([seen], columns, lengths.segment)
    total, needed = seen + columns, [0] * columns
    for column in range(columns - wanted, columns):
        needed[column] = layers
    for layer in range(layers, 0, -1):
        open_ones = [total, *(seen + column for column, depth in enumerate(needed) if depth >= layer)]
        for token in open_ones:  # sees its own segment, and what is remembered at its beginning
            compressed, recent, segment = simulate(lengths, token)
            for source in chain(*compressed, recent, segment):
                if source >= seen:
                    needed[source - seen] = max(needed[source - seen], layer - 1)
    depths = needed_depths(schedule, lengths, layers, wanted)
    for piece, depth in zip(schedule.pieces, depths, strict=True):
        assert depth >= max(needed[piece.columns])
        assert depth <= max(needed[piece.columns.start : min(columns, piece.columns.stop + lengths.segment)])


def sequence(start, stop, rows=2):
    """Tokens (rows, n, 1) that carry their number."""
    return torch.arange(float(start), stop).view(1, -1, 1).repeat(rows, 1, 1)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_full_segments_move_on(lengths):
    recent = sequence(0, 0)
    for start in range(0, lengths.segment * 9, lengths.segment):
        segment, before = sequence(start, start + lengths.segment), recent
        old, recent = move_on(recent, segment, lengths.recent)
        assert recent[0].flatten().tolist() == simulate(lengths, start + lengths.segment)[1]
        assert torch.equal(torch.cat([old, recent], 1), torch.cat([before, segment], 1))
        assert recent.untyped_storage().nbytes() == recent.nbytes, "the segment's buffer is used again"


def test_no_more_slots_are_kept_than_there_is_room_for():
    slots = torch.arange(9.0).view(1, 9, 1)
    for kept, room in ((0, 5), (3, 4), (4, 5), (4, 9), (4, 20), (7, 2), (9, 0)):
        found = append(slots[:, :kept], slots[:, kept:], room)
        assert_close(found, slots[:, max(0, 9 - room) :])
        assert found.untyped_storage().nbytes() == found.nbytes, "nothing forgotten is kept alive"


def test_which_slots_are_filled():
    slots = torch.zeros(3, 4, 2)
    assert filled_slots([2, 2, 2], slots) is None
    assert filled_slots([1, 4, 0], slots).tolist() == flags("...x", "xxxx", "....").tolist()
    assert filled_slots([1, 4, 0], slots, leftmost=True).tolist() == flags("x...", "xxxx", "....").tolist()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_tokens_find_their_place_in_the_segment(mask, in_place):
    mask, seen, T = MASKS[mask], [1, 3, 2], 40
    schedule = Schedule(seen, 22, T, mask)
    tokens, buffer = torch.randn(3, 22, 4), torch.randn(3, T, 4)
    before = buffer.clone()
    after = write_segment(buffer, tokens, schedule.pieces[0], schedule, in_place)
    assert (after is buffer) == in_place and (in_place or torch.equal(buffer, before))
    for row in range(3):
        real = tokens[row] if mask is None else tokens[row, mask[row]]
        expected = before[row].clone()
        expected[seen[row] : seen[row] + len(real)] = real
        assert torch.equal(after[row], expected)


def test_a_buffer_is_made_when_it_is_needed():
    schedule = Schedule([0, 0], 3, 5)
    tokens = torch.randn(2, 3, 4)
    buffer = write_segment(tokens[:, :0], tokens, schedule.pieces[0], schedule, in_place=True)
    assert buffer.shape == (2, 5, 4) and torch.equal(buffer[:, :3], tokens)


def test_rows_are_put_right_aligned():
    target = sequence(10, 13, rows=3)
    wider = put_rows(target, torch.tensor([1]), sequence(0, 5, rows=1))
    assert wider[..., 0].tolist() == [[0, 0, 10, 11, 12], [0, 1, 2, 3, 4], [0, 0, 10, 11, 12]]
    narrower = put_rows(target, torch.tensor([0, 2]), sequence(1, 2))
    assert narrower[..., 0].tolist() == [[0, 0, 1], [10, 11, 12], [0, 0, 1]]


def test_rows_of_a_memory_are_selected():
    memory = Memory(torch.randn(3, 2, 4), torch.randn(3, 5, 4), torch.randn(3, 0, 4), {"S": torch.randn(3, 7)})
    picked = memory.select(torch.tensor([2, 0]))
    assert torch.equal(picked.recent, memory.recent[[2, 0]])
    assert torch.equal(picked.state["S"], memory.state["S"][[2, 0]])
    assert memory._replace(state=None).select(torch.tensor([1])).state is None
    assert memory.select(None) is memory


def test_rows_of_a_memory_are_replaced():
    memory = Memory(*(sequence(0, n, rows=3) for n in (2, 5, 4)), {"S": torch.randn(3, 7)})
    others = Memory(sequence(7, 10, rows=1), sequence(20, 25, rows=1), sequence(0, 0, rows=1))
    found = memory.with_rows(torch.tensor([1]), others)
    assert found.compressed[..., 0].tolist() == [[0, 0, 1], [7, 8, 9], [0, 0, 1]]
    assert found.recent[1, :, 0].tolist() == [20, 21, 22, 23, 24] and found.recent[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(found.segment, memory.segment) and found.state is None
    assert memory.with_rows(None, others) is others
