"""Keys, challenges and sessions: what is taken once, and what is not taken at all."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.wire.link import NOTHING, WAIT, Proof, Token, TokenError, signed_text
from perennial.server.link.fleet_keys import Bucket, Keys, Refusal, Session

CERTIFICATE = b"the server's"
PRIVATE = generate_private_key(SECP384R1())


def prove(keys: Keys, private: EllipticCurvePrivateKey = PRIVATE, now: float = 0, certificate: bytes = b"") -> Proof:
    challenge, public = keys.challenges.make(now), private.public_key()
    signature = private.sign(signed_text(challenge, certificate), ECDSA(SHA256()))
    return Proof(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), challenge, signature)


@pytest.fixture
def keys() -> Keys:
    made = Keys()
    made.register(PRIVATE.public_key())
    return made


@pytest.fixture
def session(keys: Keys) -> Session:
    return keys.open(prove(keys), 0)


def refusal(action: object, *arguments: object) -> Refusal:
    assert callable(action)
    with pytest.raises(Refusal) as refused:
        action(*arguments)
    return refused.value


def token(session: Session, number: int = 1, **changed: object) -> str:
    parts = {"session": session.id, "secret": session.secret, "number": number, "method": "POST", "path": WAIT,
             "length": 0, "body": NOTHING}  # fmt: skip
    return Token.make(**{**parts, **changed}).header()  # type: ignore[arg-type]


def check(keys: Keys, header: str, now: float = 0) -> Session:
    return keys.check(header, "POST", WAIT, 0, now)[0]


@pytest.mark.parametrize("curve", [SECP256R1(), SECP384R1()])
def test_a_registered_key_begins_a_session(curve: SECP256R1) -> None:
    keys, private = Keys(certificate=CERTIFICATE), generate_private_key(curve)
    node = keys.register(private.public_key())
    session = keys.open(prove(keys, private, certificate=CERTIFICATE), 0)
    assert session.node == node
    assert check(keys, token(session)) is session


def test_a_node_has_the_same_id_on_every_server(keys: Keys) -> None:
    assert Keys().register(PRIVATE.public_key()) == keys.register(PRIVATE.public_key()) > 1


def test_an_unknown_key_is_refused(keys: Keys) -> None:
    assert refusal(keys.open, prove(keys, generate_private_key(SECP384R1())), 0).status == 403


def test_a_signature_for_another_server_is_refused(keys: Keys) -> None:
    assert refusal(keys.open, prove(keys, certificate=b"another server's"), 0).status == 401


def test_a_challenge_is_signed_once(keys: Keys) -> None:
    proof = prove(keys)
    keys.open(proof, 0)
    assert "signed before" in str(refusal(keys.open, proof, 1))


def test_a_challenge_of_another_server_or_of_long_ago_is_refused(keys: Keys) -> None:
    assert "not this server's" in str(refusal(keys.open, prove(Keys()), 0))
    assert "too old" in str(refusal(keys.open, prove(keys, now=0), 61))


@pytest.mark.parametrize("challenge", ["", ".", "x.y", "1.2.3", "ä.ö", "9" * 5000])
def test_a_challenge_that_is_none_is_refused(keys: Keys, challenge: str) -> None:
    proof = prove(keys)
    assert refusal(keys.open, Proof(proof.key, challenge, proof.signature), 0).status == 401


def test_strangers_leave_nothing_behind(keys: Keys) -> None:
    for _ in range(10):
        refusal(keys.open, prove(keys, generate_private_key(SECP256R1())), 0)
        proof = prove(keys)
        refusal(keys.open, Proof(proof.key, proof.challenge, b"forged"), 0)
    assert len(keys) == 0
    assert not keys.challenges._signed


def test_signed_challenges_are_forgotten_with_their_time(keys: Keys) -> None:
    for minute in range(10):
        keys.open(prove(keys, now=100.0 * minute), 100.0 * minute)
    assert len(keys.challenges._signed) == 1


def test_a_new_session_ends_the_one_before(keys: Keys, session: Session) -> None:
    again = keys.open(prove(keys), 0)
    assert "no such session" in str(refusal(check, keys, token(session)))
    assert check(keys, token(again)) is again


def test_a_key_that_is_on_two_machines_is_slowed_down(keys: Keys) -> None:
    refused = []
    for moment in range(100):
        try:
            keys.open(prove(keys, now=moment), moment)
        except Refusal as refusal:
            refused.append((refusal.status, refusal.retry))
    assert refused == [(429, 10.0)] * (100 - 5 - 9)


def test_a_revoked_key_is_out_at_once_and_stays_out(keys: Keys, session: Session) -> None:
    keys.revoke(session.node)
    assert refusal(check, keys, token(session)).status == 401
    assert refusal(keys.open, prove(keys), 0).status == 403
    with pytest.raises(ValueError, match="revoked"):
        keys.register(PRIVATE.public_key())


def test_a_session_expires(keys: Keys, session: Session) -> None:
    assert check(keys, token(session), 6 * 3600)
    assert "no such session" in str(refusal(check, keys, token(session, 2), 6 * 3600 + 1))


def test_a_request_is_taken_once_and_in_its_turn(keys: Keys, session: Session) -> None:
    first, second = token(session, 1), token(session, 2)
    check(keys, second)
    for old in (second, first):
        assert "used before" in str(refusal(check, keys, old))


@pytest.mark.parametrize(
    "changed",
    [{"method": "GET"}, {"path": "/v1/link/leave"}, {"length": 1}, {"secret": b"x" * 32}],
    ids=["method", "route", "length", "secret"],
)
def test_a_token_is_of_one_request_alone(keys: Keys, session: Session, changed: dict[str, object]) -> None:
    assert "not of this request" in str(refusal(check, keys, token(session, **changed)))
    # Whoever fails uses up no number of the real node.
    assert check(keys, token(session, 1)) is session


def test_a_token_is_of_one_body_alone(keys: Keys, session: Session) -> None:
    assert "not of this request" in str(refusal(check, keys, token(session).replace(NOTHING, "0" * 64)))


@given(st.text() | st.integers(0, 120).map(lambda cut: f"Perennial {'a' * 32} 1 {'b' * 64} {'c' * 64}"[:cut]))
def test_a_token_that_is_forged_or_cut_off_is_refused(header: str) -> None:
    with pytest.raises((Refusal, TokenError)):
        check(Keys(), header)


@given(st.text() | st.binary().map(lambda raw: f"Perennial-Key {raw.hex()} x y"))
def test_a_proof_that_is_none_is_refused(header: str) -> None:
    with pytest.raises((Refusal, TokenError)):
        Keys(anybody=True).open(Proof.read(header), 0)


def test_a_proof_and_a_token_are_read_as_they_were_written(keys: Keys, session: Session) -> None:
    proof = prove(keys)
    assert Proof.read(proof.header()) == proof
    assert Token.read(token(session)).header() == token(session)


def test_a_node_that_floods_is_slowed_down(keys: Keys, session: Session) -> None:
    for number in range(1, 61):
        check(keys, token(session, number))
    assert refusal(check, keys, token(session, 61)).status == 429
    assert check(keys, token(session, 62), 1.0) is session


def test_anybody_may_come_where_that_is_asked_for_and_leaves_no_trace() -> None:
    keys = Keys(anybody=True)
    session = keys.open(prove(keys, generate_private_key(SECP256R1())), 0)
    assert check(keys, token(session)) is session
    keys.end(session.node)
    assert len(keys) == len(keys._paces) == 0


@pytest.mark.parametrize("key", [b"", b"x" * 100, b"\x30" * 10_000])
def test_a_key_that_is_none_is_refused_where_anybody_may_come(key: bytes) -> None:
    keys = Keys(anybody=True)
    assert refusal(keys.open, Proof(key, keys.challenges.make(0), b""), 0).status == 400


def test_a_bucket_lets_through_what_it_says() -> None:
    bucket = Bucket(3, 0.5)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(now) for now in (1, 2, 3, 4)] == [False, True, False, True]
