"""Arbitrary input neither crashes a receiver nor is accepted."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacitly.federation import wire
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.inbox import Inbox
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.wire import WireError
from tacitly.methods.fedpower.gram import CentreVote
from tacitly.methods.shared.whitening import FeatureMoment

SIZE, REACH, TOKEN = 8, 1000.0, "a" * 32
GOOD = Answer(TOKEN, "ok", np.arange(SIZE)).to_bytes()
MAGIC = b"tacitly1\n"


def inbox() -> Inbox:
    return Inbox({1: TOKEN, 2: TOKEN}, {1: 1, 2: 3}, SIZE, REACH)


def told(header: object, body: bytes = b"") -> bytes:
    return MAGIC + json.dumps(header).encode() + b"\n" + body


def rubbish(chance: random.Random) -> tuple[object, object]:
    """Make one reply that must be rejected."""

    def numbers(kind: str, shape: list[int], body: bytes | None = None) -> bytes:
        size = abs(math.prod(shape)) if math.prod(shape) < 1000 else 3
        return told({"answer": [TOKEN, "ok"], "arrays": [[kind, shape]]}, body or chance.randbytes(8 * size))

    far = chance.choice([2**62, -(2**63), 2**63 - 1, int(REACH) * 5, -int(REACH) * 5])
    spoiled = np.arange(SIZE)
    spoiled[chance.randrange(SIZE)] = far
    kinds: list[Callable[[], object]] = [
        lambda: chance.randbytes(chance.randrange(200)),
        lambda: MAGIC + chance.randbytes(chance.randrange(200)),
        lambda: GOOD[: chance.randrange(len(GOOD))],
        lambda: GOOD + chance.randbytes(1 + chance.randrange(9)),
        lambda: GOOD.replace(b"a" * 32, bytes(chance.choices(b"abcdef0123456789", k=31)) + b"x"),
        lambda: Answer(TOKEN, "ok", spoiled).to_bytes(),
        lambda: Answer(TOKEN, "ok", np.zeros(chance.choice([0, 1, 7, 9, 500]), dtype=np.int64)).to_bytes(),
        lambda: Answer(TOKEN, chance.choice(["refused", "failed", "malformed"])).to_bytes(),
        lambda: Answer(TOKEN, "ok").to_bytes(),
        lambda: numbers("<f8", [SIZE]),
        lambda: numbers("<i8", [2, 4]),
        lambda: numbers("|O", [SIZE]),
        lambda: numbers("<i8", [chance.choice([-1, 2**40, 2**63, 10**30])]),
        lambda: told({"answer": [TOKEN, "ok"], "arrays": [["<i8", [SIZE]]] * 2}, chance.randbytes(128)),
        lambda: told({"answer": [TOKEN, "ok"], "arrays": chance.choice([None, 3, "x", {}, [[]], [[1]]])}),
        lambda: told({"answer": chance.choice([None, [], [TOKEN], [TOKEN, "yes"], [1, "ok"], {}]), "arrays": []}),
        lambda: told(chance.choice([None, [], 3, "x", {}, {"answer": [TOKEN, "ok"]}])),
        lambda: MAGIC + b"[" * chance.choice([10, 10, 10, 5000]) + b"\n",
        lambda: MAGIC + b'{"answer": NaN, "arrays": []}\n',
        lambda: MAGIC + b"{" * chance.choice([10, 10, 10, 70_000]),
        lambda: chance.choice([None, "text", 7, 1.5, [], {}, bytearray(GOOD), object()]),
    ]
    sender = chance.choice([1, 2])
    if chance.random() < 0.1:
        return chance.choice([0, 3, -1, 2**64, True, None, "1", 1.0, [], b"1"]), GOOD
    return sender, chance.choice(kinds)()


def test_a_hundred_thousand_malformed_replies_are_all_rejected_and_counted() -> None:
    chance, box = random.Random(0), inbox()
    for _ in range(100_000):
        assert box.take(*rubbish(chance)) not in ("ok", "clipped")
    assert not box.total.any()
    assert not box.answered
    assert sum(box.verdicts.values()) == 100_000
    known = {"unknown", "duplicate", "late", "malformed", "shape", "range", "refused", "failed", "lost"}
    assert set(box.verdicts) <= known  # no node invents another, which pages would show
    assert min(box.verdicts[name] for name in ("unknown", "malformed", "late", "range", "shape", "refused")) > 100
    assert box.take(1, GOOD) == "ok"  # and a valid one is still accepted


def test_a_reply_with_flipped_bits_counts_for_its_users_at_most() -> None:
    chance = random.Random(1)
    believed = 0
    for _ in range(20_000):
        data = bytearray(GOOD)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        box = inbox()
        if box.take(1, bytes(data)) in ("ok", "clipped"):
            believed += 1
            assert np.linalg.norm(box.total) <= REACH + math.sqrt(SIZE) + 1
    assert believed > 0  # a flipped bit in the numbers is a valid answer


@given(st.binary(max_size=300))
def test_bytes_from_anywhere_are_a_message_or_an_error_of_ours(data: bytes) -> None:
    for reader in (wire.decode, Answer.from_bytes, Ask.from_bytes):
        for each in (data, MAGIC + data):
            with pytest.raises(WireError):
                reader(each)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


names = st.sampled_from(["n_features", "centered", "basis"])


@given(st.sampled_from(sorted(wire.KNOWN)), st.dictionaries(names, plain))
def test_a_known_class_with_other_fields_or_types_is_refused(name: str, fields: dict[str, object]) -> None:
    right = {"FeatureMoment": {"n_features": int, "centered": bool}, "PairStatistic": {"n_features": int}}
    if {key: type(value) for key, value in fields.items()} == right.get(name):
        return
    header = json.dumps({"thing": {"class": name, "fields": fields}, "arrays": []}).encode()
    with pytest.raises(WireError):
        wire.decode(MAGIC + header + b"\n")


def test_a_class_that_does_not_stand_in_the_list_is_never_made() -> None:
    for name in ("Ledger", "Path", "os.system", "__class__", "Query", "eval"):
        with pytest.raises(WireError, match="unknown class"):
            wire.decode(told({"thing": {"class": name, "fields": {}}, "arrays": []}))
    with pytest.raises(WireError, match="cannot travel"):
        wire.encode(Card(name="x", key="", mask_key="", users=1, features=()))


def test_what_was_encoded_comes_back() -> None:
    query = wire.decode(wire.encode(FeatureMoment(5, True)))
    assert query == FeatureMoment(5, True)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 400])
def test_a_number_beyond_all_floats_is_no_number(number: bytes) -> None:
    good = wire.encode(CentreVote(np.ones(3), 1.0))
    with pytest.raises(WireError):
        wire.decode(good.replace(b'"scale":1.0', b'"scale":' + number))


@pytest.mark.parametrize("shape", ['["2"]', "[1.9]", "[2.0]", "[true]", "[1e999]", '"2"', "[null]"])
def test_a_size_is_a_whole_number(shape: str) -> None:
    for length in (0, 8, 16):
        with pytest.raises(WireError):
            wire.unpack(MAGIC + f'{{"arrays":[["<f8",{shape}]]}}\n'.encode() + bytes(length))


def test_an_answer_at_the_edge_of_what_is_allowed_moves_no_further_when_it_is_clipped() -> None:
    units, reach = 10**6, 2.0**22 * 5
    allowed = units * reach + units * math.sqrt(SIZE)
    edge = np.zeros(SIZE, dtype=np.int64)
    edge[:2] = int(allowed / math.sqrt(2)) - 2
    totals = []
    for more in (0, 10):
        box = Inbox({1: TOKEN}, {1: units}, SIZE, reach)
        verdict = box.take(1, Answer(TOKEN, "ok", edge + np.eye(SIZE, dtype=np.int64)[0] * more).to_bytes())
        assert verdict == ("clipped" if more else "ok")
        totals.append(box.total.astype(np.float64))
    assert np.linalg.norm(totals[1] - totals[0]) < 1e-3 * reach
