"""Gaps of a configuration for given artifacts, and entries that ONNX Runtime's build would lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from minbuild.compat.ort_config.grammar import ALLOWED, parse_config
from minbuild.compat.ort_config.requirements import Requirements, Types
from minbuild.frontend.onnx.opsets import next_version

# Registrations of these integers stay in every build.
_ALWAYS = {
    **{
        name: frozenset({"int32_t", "int64_t"})
        for name in ["Add", "Concat", "Div", "Equal", "Greater", "Less", "Mul", "Neg", "Sub"]
    },
    "DequantizeLinear": frozenset({"int8_t", "uint8_t", "int32_t"}),
}
# Registrations for two types at once, which a list of allowed single types removes.
_COMPOUND = frozenset(
    {"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad", "DropoutGrad", "Scale", "ReduceAllL2"}
)


def missing_operators(required: Requirements, text: str, path: str) -> tuple[str, ...]:
    """One sentence, with its cure, for everything that a build with the configuration `text` would not have and the
    artifacts need. `required` are the requirements of the artifacts, `path` the name of the configuration in
    messages. Raises BadInput where `text` is not a configuration."""
    given = parse_config(text, path)
    found = [
        finding for key, types in required.operators.items() for finding in _operator(key, types, given, path)
    ]
    needed = {(domain, name) for domain, _, name in required.operators}
    return (*found, *_lost(needed, text, given, path))


def _operator(key: tuple[str, int, str], types: Types, given: Requirements, path: str) -> Iterator[str]:
    domain, version, name = key
    title = f"{path}: {name} (domain {domain}, version {version})"
    end = next_version("" if domain == "ai.onnx" else domain, name, version)
    fitting = [
        t
        for (d, v, n), t in given.operators.items()
        if (d, n) == (domain, name) and version <= v < (end or v + 1)
    ]
    if not fitting and not given.everything:
        others = sorted(v for d, v, n in given.operators if (d, n) == (domain, name))
        there = f"; it is there for opset {', '.join(map(str, others))} only" if others else ""
        yield f"{title}: is missing{there}. Add the line '{domain};{version};{name}'."
        return
    kept = _ALWAYS.get(name, frozenset())
    if given.allowed is not None:
        refused = sorted(types.names - given.allowed - kept)
        if refused:
            yield f"{title}: {', '.join(refused)} is not allowed. Add it to {ALLOWED}."
    if any(not each for each in fitting):  # no types named: all are kept
        return
    for (kind, index), names in sorted(types.places.items()):
        there_for = frozenset().union(*(each.places.get((kind, index), frozenset()) for each in fitting))
        absent = sorted(names - there_for - kept)
        if fitting and absent and (there_for or kind == "inputs"):
            yield f"{title}: lacks {', '.join(absent)} for {kind[:-1]} {index}. Add it to the operator's types."
    absent_triples = types.triples - frozenset().union(*(each.triples for each in fitting))
    for triple in sorted(absent_triples if fitting else ()):
        yield f"{title}: lacks the combination {', '.join(triple)}. Add it to 'custom'."


def _lost(needed: set[tuple[str, str]], text: str, given: Requirements, path: str) -> Iterator[str]:
    """Entries of the file that ONNX Runtime's build script overlooks."""
    told: dict[tuple[str, str], list[tuple[int, Types]]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        for (domain, _, name), types in parse_config(line, path).operators.items():
            if not told[domain, name] or told[domain, name][-1][0] != number:
                told[domain, name].append((number, types))
            if "#" in line and (domain, name) in needed:
                yield (
                    f"{path}: line {number}: ONNX Runtime takes '#' and what follows for a part of the last operator's "
                    "name. Give the comment a line of its own."
                )
                break
    for (domain, name), lines in sorted(told.items()):
        if (domain, name) in needed and len({repr(_sorted(types)) for _, types in lines}) > 1:
            numbers = ", ".join(str(number) for number, _ in lines)
            yield (
                f"{path}: lines {numbers}: the types of {name} differ, and ONNX Runtime keeps those of the last line "
                "only. Give each line the types of all."
            )
    if given.allowed is not None:
        for domain, name in sorted(needed):
            if name in _COMPOUND:
                yield (
                    f"{path}: {ALLOWED} makes ONNX Runtime drop every kernel of {name} (domain {domain}), which it "
                    "knows by two types at once. Name types by operator instead."
                )


def _sorted(types: Types) -> tuple[object, ...]:
    return (sorted((place, sorted(names)) for place, names in types.places.items()), sorted(types.triples))
