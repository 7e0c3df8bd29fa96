"""The library: each language's rules have not changed, and its facts are those of mathematics."""

import math

import pytest

from grammarlab.language import library_folder, load

# What `python src/language.py language=NAME json=true` calls `checksum`.
CHECKSUMS = {
    "anbn": "bc4ae5a8456597c8",
    "arithmetic": "2661ef58386b8751",
    "captions": "599e609406a615d0",
    "cfg3b": "af52a205593da823",
    "cfg3f": "409c85245f3a9db8",
    "cfg3g": "8de0fa00161eb6d6",
    "cfg3h": "7abd06c98483efcd",
    "cfg3i": "31d37928c0229bcd",
    "double": "ae8f35212f2a3b27",
    "dyck": "1d8c9c56b7ff6ee4",
    "dyck1": "0cdf3123b81d862f",
    "dyck2": "21853e9d1ffd74d0",
    "palindromes": "04fc35a62d42b5a3",
    "random": "0a46fae027a7fb8e",
    "tail": "2fba80ec7c2bb4d9",
    "tomita1": "8373db215dec8393",
    "tomita2": "1533fe5b6578cf68",
    "tomita3": "eefef85a11d60676",
    "tomita4": "05f847023c9883cc",
    "tomita5": "f4f5fb33512f26da",
    "tomita6": "690f2f3f6eacfdd8",
    "tomita7": "1d943e776aa8d72c",
}


def binary(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


# Mean length and entropy in nats, from the formula of each: a geometric number of steps, or of pairs.
FACTS = {
    "tail": (2, 2 * math.log(2)),
    "anbn": (6, binary(0.75) / 0.25),
    "dyck1": (2, binary(1 / 3) / (1 - 2 / 3)),
    "dyck2": (2, (binary(1 / 3) + math.log(2) / 3) / (1 - 2 / 3)),
    "dyck": (2, (binary(1 / 3) + math.log(3) / 3) / (1 - 2 / 3)),
    "palindromes": (6.5, (binary(0.25) + 0.75 * math.log(2) + 0.25 * 1.5 * math.log(2)) / 0.25),
    "tomita1": (4, binary(0.2) / 0.2),
    "captions": (6, 3 * math.log(2)),
}


@pytest.mark.parametrize("name", FACTS)
def test_mean_length_and_entropy(name: str) -> None:
    language = load(name)
    mean, entropy = FACTS[name]
    assert language.mean_length().value == pytest.approx(mean, rel=1e-9)
    assert language.entropy().exact
    assert language.entropy().value == pytest.approx(entropy, rel=1e-9)


@pytest.mark.parametrize("name", sorted(p.stem for p in library_folder().glob("*.yaml") if p.stem != "file"))
def test_the_rules_are_those_that_were_published(name: str) -> None:
    assert load(name).checksum() == CHECKSUMS[name]
