#!/usr/bin/python3
"""Writes sampler_golden.txt: what torch.utils.data.DistributedSampler gives (made with torch 1.13).

One case per line: num_examples size rank shuffle seed epoch drop_last count checksum elements...
Lists longer than 64 are given by count and checksum alone.
"""
import os

from torch.utils.data import DistributedSampler


def checksum(elements):
    value = 0xCBF29CE484222325
    for element in elements:
        value = ((value ^ element) * 0x100000001B3) % 2**64
    return value


def line(n, size, rank, shuffle, seed, epoch, drop_last):
    sampler = DistributedSampler(range(n), size, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    taken = list(sampler)
    shown = taken if len(taken) <= 64 else []
    fields = [n, size, rank, int(shuffle), seed, epoch, int(drop_last), len(taken), checksum(taken)]
    return " ".join(map(str, fields + shown))


def cases():
    for n, size in [
        (0, 1),
        (0, 3),
        (1, 1),
        (1, 4),
        (2, 3),
        (3, 8),
        (7, 2),
        (10, 4),
        (12, 4),
        (13, 5),
        (64, 8),
        (100, 7),
    ]:
        for rank in sorted({0, size // 2, size - 1}):
            for drop_last in (False, True):
                yield n, size, rank, False, 0, 0, drop_last
                yield n, size, rank, True, 3 * n + size, rank + 1, drop_last
    for seed, epoch in [
        (0, 0),
        (0, 1),
        (1, 0),
        (42, 17),
        (2**31, 5),
        (2**32 - 1, 1),
        (2**32, 0),
        (2**63, 9),
        (2**64 - 1, 0),
        (0, -1),
        (123456789012345, 1000000),
    ]:
        yield 50, 3, 1, True, seed, epoch, False
    for n, size, rank in [
        (623, 1, 0),
        (624, 2, 1),
        (625, 4, 3),
        (2000, 33, 32),
        (100000, 1, 0),
        (99991, 8, 5),
    ]:
        for drop_last in (False, True):
            yield n, size, rank, True, 1234, 2, drop_last
    yield 100000, 3, 2, False, 0, 0, False


with open(os.path.join(os.path.dirname(__file__), "sampler_golden.txt"), "w") as golden:
    golden.writelines(line(*case) + "\n" for case in cases())
