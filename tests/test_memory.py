"""The arena: nothing alive together overlaps, and no arena is smaller than what is alive at once."""

import random

import pytest

from minicnn.memory import ALIGNMENT, Lifetime, arrange, live_bytes


def lives(seed: int) -> list[Lifetime]:
    rng = random.Random(seed)
    result = []
    for index in range(rng.randrange(1, 60)):
        first = rng.randrange(40)
        last = min(first + rng.choice((0, 1, 1, 2, 12)), 39)
        result.append(Lifetime(name=str(index), first=first, last=last, nbytes=rng.randrange(1, 100_000)))
    return result


@pytest.mark.parametrize("seed", range(40))
def test_buffers_alive_together_lie_apart(seed: int) -> None:
    buffers = lives(seed)
    arrangement = arrange(buffers)
    for index, one in enumerate(buffers):
        start = arrangement.offsets[one.name]
        assert start % ALIGNMENT == 0 and start + one.nbytes <= arrangement.peak
        for other in buffers[:index]:
            together = one.first <= other.last and other.first <= one.last
            apart = start + one.nbytes <= arrangement.offsets[other.name]
            apart |= arrangement.offsets[other.name] + other.nbytes <= start
            assert apart or not together
    assert arrangement.live_peak == max(live_bytes(buffers, 40))
    assert arrangement.live_peak <= arrangement.peak


def test_live_bytes_by_hand() -> None:
    one = Lifetime(name="one", first=0, last=1, nbytes=ALIGNMENT)
    two = Lifetime(name="two", first=1, last=2, nbytes=2 * ALIGNMENT - 1)
    assert live_bytes([one, two], 4) == [ALIGNMENT, 3 * ALIGNMENT, 2 * ALIGNMENT, 0]


def test_a_chain_takes_two_buffers() -> None:
    chain = [Lifetime(name=str(i), first=i, last=i + 1, nbytes=ALIGNMENT) for i in range(50)]
    assert arrange(chain).peak == 2 * ALIGNMENT


def test_nothing_takes_nothing() -> None:
    assert arrange([]).peak == 0
