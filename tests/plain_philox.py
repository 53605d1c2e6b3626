"""Philox in plain Python, and the key of a random stream: what native/philox.h computes."""

MASK = 0xFFFFFFFF


def philox(key, counter):
    """Philox4x32-10 of Salmon et al., SC'11."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def stream_key(seed, epoch, batch, purpose):
    return philox((seed & MASK, seed >> 32), (epoch, batch & MASK, batch >> 32, purpose))[:2]
