"""Decryption by AES-256-GCM (FIPS 197, NIST SP 800-38D) with the standard library alone, for images without more.

It is slow, and does not hide its memory accesses: good for opening one token on the machine that it is for.
"""

import hmac
import struct

_ROUNDS = 14
_TAG_BYTES = 16


def _make_box():
    """The S-box: the inverse in GF(2^8), and the affine transformation."""
    box, p, q = [0] * 256, 1, 1
    while True:
        p ^= (p << 1) ^ (0x11B if p & 0x80 else 0)
        p &= 0xFF
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q &= 0xFF
        if q & 0x80:
            q ^= 0x09
        turned = q ^ (q << 1 | q >> 7) ^ (q << 2 | q >> 6) ^ (q << 3 | q >> 5) ^ (q << 4 | q >> 4)
        box[p] = (turned & 0xFF) ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return bytes(box)


_BOX = _make_box()


def _double(byte):
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


def _round_keys(key):
    words = [key[at : at + 4] for at in range(0, 32, 4)]
    constant = 1
    for number in range(8, 4 * (_ROUNDS + 1)):
        word = words[-1]
        if number % 8 == 0:
            word = bytes(_BOX[byte] for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _double(constant)
        elif number % 8 == 4:
            word = bytes(_BOX[byte] for byte in word)
        words.append(bytes(a ^ b for a, b in zip(words[-8], word, strict=False)))
    return [b"".join(words[at : at + 4]) for at in range(0, len(words), 4)]


def _encrypt(keys, block):
    state = bytes(a ^ b for a, b in zip(block, keys[0], strict=False))
    for number in range(1, _ROUNDS + 1):
        state = bytes(_BOX[state[(at + 4 * (at % 4)) % 16]] for at in range(16))
        if number < _ROUNDS:
            state = b"".join(_mixed(state[at : at + 4]) for at in range(0, 16, 4))
        state = bytes(a ^ b for a, b in zip(state, keys[number], strict=False))
    return state


def _mixed(column):
    every = column[0] ^ column[1] ^ column[2] ^ column[3]
    return bytes(column[at] ^ every ^ _double(column[at] ^ column[(at + 1) % 4]) for at in range(4))


def _multiplied(a, b):
    """In GF(2^128) as GCM writes it."""
    product = 0
    for bit in range(127, -1, -1):
        if b >> bit & 1:
            product ^= a
        a = a >> 1 ^ (0xE1 << 120 if a & 1 else 0)
    return product


def _hashed(subkey, text):
    value = 0
    padded = text + bytes(-len(text) % 16) + struct.pack(">QQ", 0, len(text) * 8)
    for at in range(0, len(padded), 16):
        value = _multiplied(value ^ int.from_bytes(padded[at : at + 16], "big"), subkey)
    return value.to_bytes(16, "big")


def open_sealed(key, nonce, sealed):
    """The plain text, without additional data. Raises ValueError for what was not sealed with this key and nonce."""
    if len(key) != 32 or len(nonce) != 12 or len(sealed) < _TAG_BYTES:
        raise ValueError("a key of 32 bytes, a nonce of 12 and a tag of 16 are wanted")
    keys = _round_keys(key)
    text, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    subkey = int.from_bytes(_encrypt(keys, bytes(16)), "big")
    mask = _encrypt(keys, nonce + struct.pack(">I", 1))
    made = bytes(a ^ b for a, b in zip(_hashed(subkey, text), mask, strict=False))
    if not hmac.compare_digest(made, tag):
        raise ValueError("it was not sealed with this key, or it was changed")
    plain = b""
    for number, at in enumerate(range(0, len(text), 16), 2):
        stream = _encrypt(keys, nonce + struct.pack(">I", number))
        plain += bytes(a ^ b for a, b in zip(text[at : at + 16], stream, strict=False))
    return plain
