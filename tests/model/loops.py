"""The encoder written once more, from the papers: one sequence, token by token and head by head, in plain loops of numpy.

Nothing of bertkit computes here; only which random blocks BigBird draws is asked of it, since no paper says. Everything
holds for complex numbers too: f(x + ih) has the derivative of f in its imaginary part, h times, without any rounding for
a difference (Squire and Trapp 1998). So a softmax subtracts no maximum.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bertkit.model.bert_config import BertConfig
from bertkit.model.patterns import bigbird_blocks

Numbers = NDArray[np.complex128]
Weights = dict[str, Numbers]


def softmax(scores: Numbers) -> Numbers:
    powers = np.exp(scores)
    return powers / powers.sum()


def linear(w: Weights, name: str, x: Numbers) -> Numbers:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0)


def norm(w: Weights, name: str, x: Numbers, config: BertConfig) -> Numbers:
    """Ba et al. 2016, equation 4; Zhang and Sennrich 2019, equation 4."""
    if config.norm.kind == "rms":
        return x / np.sqrt((x * x).mean() + config.layer_norm_eps) * w[f"{name}.weight"]
    centred = x - x.mean()
    scaled = centred / np.sqrt((centred * centred).mean() + config.layer_norm_eps) * w[f"{name}.weight"]
    return scaled + w.get(f"{name}.bias", 0)


def sinusoid(place: int, size: int) -> Numbers:
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same."""
    waves = [place / 10_000 ** (2 * i / size) for i in range(size // 2)]
    return np.array([f(wave) for wave in waves for f in (np.sin, np.cos)], complex)


@functools.cache
def rotation(place: int, size: int, base: float, factor: float, pairs: str) -> Numbers:
    """Su et al. 2021, equation 15: a matrix of 2 x 2 rotations by m theta_i, of neighbours, or of an element of each half.

    Chen et al. 2023, equation 4: m is divided by a factor.
    """
    matrix = np.zeros((size, size), complex)
    for i in range(size // 2):
        angle = place / factor * base ** (-2 * i / size)
        a, b = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + size // 2)
        matrix[a, a], matrix[a, b] = np.cos(angle), -np.sin(angle)
        matrix[b, a], matrix[b, b] = np.sin(angle), np.cos(angle)
    return matrix


def is_local(config: BertConfig, layer: int) -> bool:
    """Warner et al. 2024, section 2.1.2: every third layer has full attention, from the first on."""
    return config.attention.pattern == "window" or (
        config.attention.pattern == "alternating" and layer % config.attention.full_every != 0
    )


@functools.cache
def slopes(num_heads: int) -> list[float]:
    """Press et al. 2022, `get_slopes` of their code, with its recursion."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    of_power = [2.0 ** (-8.0 / power * (head + 1)) for head in range(power)]
    return of_power if power == num_heads else of_power + slopes(2 * power)[0::2][: num_heads - power]


def row_of(distance: int, config: BertConfig) -> int:
    """He et al. 2020, equation 3, for distances of their own; their code (v2) for buckets that grow geometrically."""
    most, buckets = config.attention.max_distance, config.attention.distance_buckets
    half, span = buckets // 2, buckets or most
    if buckets and abs(distance) > half:
        share = math.log(abs(distance) / half) / math.log((most - 1) / half)
        bucket = half + math.ceil(share * (half - 1))
        distance = bucket if distance > 0 else -bucket
    return min(max(distance + span, 0), 2 * span - 1)


def bias_row(distance: int, config: BertConfig) -> int:
    """The bucket of j - i, Raffel et al. 2020, section 2.1, as their code has it: mesh_transformer `_relative_position_bucket`."""
    most, buckets = config.attention.max_distance, config.attention.distance_buckets
    size, half = abs(distance), buckets // 2
    if buckets and size >= half:
        size = half + int(math.log(size / half) / math.log(most / half) * (buckets - half))
    return min(size, (buckets or most) - 1) + (buckets or most) * (distance > 0)


def of_distance(
    w: Weights, config: BertConfig, layer: int, number: int, side: str, distance: int, which: str
) -> Numbers:
    """K r_ij or Q r_ij of one head, He et al. 2020, equation 4: (H,)."""
    attention, own = config.attention, f"{side}.layers.{layer}.attention"
    r = w["encoder.positions.embedding.weight"][row_of(distance, config)]
    r = norm(w, "encoder.positions.norm", r, config) if attention.distance_norm else r
    mapped = linear(w, f"{own}.slots.disentangled.{which}" if attention.distance_maps == "own" else f"{own}.{which}", r)
    return np.split(mapped, config.num_attention_heads)[number]


def sees(config: BertConfig, layer: int, length: int) -> Iterator[list[int]]:
    """Of each query, the keys that it sees."""
    pattern, size = config.attention.pattern, config.attention.block_size
    blocks = -(-length // size)
    drawn = bigbird_blocks(blocks, config.attention.random_blocks, config.attention.random_seed, layer).tolist()
    for i in range(length):
        if pattern == "causal":
            yield list(range(i + 1))
        elif is_local(config, layer):
            yield [j for j in range(length) if i - config.attention.window <= j <= i + config.attention.window]
        elif pattern == "bigbird" and blocks > 5 + 2 * config.attention.random_blocks:
            a, ends = i // size, (0, blocks - 1)
            seen = {b for b in range(blocks) if a in ends or b in ends or b in (a - 1, a, a + 1) or drawn[a][b]}
            yield [j for j in range(length) if j // size in seen]
        else:
            yield list(range(length))


def head(
    w: Weights, config: BertConfig, layer: int, number: int, query: Numbers, key: Numbers, value: Numbers, side: str
) -> Numbers:
    """One head: each (T, H) -> (T, H)."""
    attention, name = config.attention, f"{side}.layers.{layer}.attention.slots"
    (length, size), k = query.shape, attention.max_distance
    seen = list(sees(config, layer, length))
    base = (is_local(config, layer) and attention.rotary_local_base) or attention.rotary_base
    turn = functools.partial(
        rotation, size=size, base=base, factor=attention.rotary_factor, pairs=attention.rotary_pairs
    )
    if attention.pattern == "linformer":
        key, value = (compressed(w, config, layer, number, which, x) for which, x in (("key", key), ("value", value)))
        seen = [list(range(attention.compressed_size))] * length
    context = np.zeros((length, size), complex)
    for i in range(length):
        scores, values = [], []
        for j in seen[i]:
            q, of_key, of_value = query[i], key[j], value[j]
            row = min(max(j - i, -k), k) + k  # of the tables of Shaw et al. 2018, section 3.2
            if attention.positions == "relative" and "keys" in attention.relative_to:
                of_key = of_key + w[f"{name}.relative.key.weight"][row]  # their equation 4
            if attention.positions == "relative" and "values" in attention.relative_to:
                of_value = of_value + w[f"{name}.relative.value.weight"][row]  # their equation 3
            if attention.score == "general":
                q = q @ w[f"{name}.score.matrix.weight"]  # q^T W
            if attention.positions == "rotary":
                q, of_key = turn(i) @ q, turn(j) @ of_key
            match attention.score:
                case "scaled_dot":
                    score = (q * of_key).sum() / size**0.5
                    if attention.positions == "disentangled":
                        for term in attention.distance_terms:
                            one, other = (q, "key") if term == "c2p" else (of_key, "query")
                            score = (
                                score
                                + (one * of_distance(w, config, layer, number, side, i - j, other)).sum() / size**0.5
                            )
                        score = score / (1 + len(attention.distance_terms)) ** 0.5
                case "dot" | "general":
                    score = (q * of_key).sum()
                case "additive":
                    both = w[f"{name}.score.of_query.weight"] @ q + w[f"{name}.score.of_key.weight"] @ of_key
                    score = (w[f"{name}.score.of_sum.weight"][0] * np.tanh(both)).sum()
                case "location":
                    score = (w[f"{name}.score.matrix.weight"][j] * q).sum()
            if attention.positions == "alibi":
                score = score - slopes(config.num_attention_heads)[number] * abs(i - j)
            if attention.positions == "relative_bias":
                own = "encoder.positions" if side == "encoder" else f"{name}.table"
                score = score + w[f"{own}.embedding.weight"][bias_row(j - i, config), number]
            scores.append(score)
            values.append(of_value)
        shares = softmax(np.array(scores))
        context[i] = sum(share * each for share, each in zip(shares, values, strict=True))
    return context


def compressed(w: Weights, config: BertConfig, layer: int, number: int, which: str, x: Numbers) -> Numbers:
    """E x or F x, Wang et al. 2020, equation 7 and the three sharings of their section 4: (T, H) -> (K, H)."""
    shared = config.attention.compression_shared
    where = "encoder" if shared == "layers" else f"encoder.layers.{layer}.attention.slots"
    of_both = "key" if shared in ("key_value", "layers") else which
    matrix = w[f"{where}.compression.{of_both}.weight"]  # (K, P), or (N * K, P)
    size = config.attention.compressed_size
    first = number * size if shared == "none" else 0
    return np.array([sum(matrix[first + r, t] * x[t] for t in range(len(x))) for r in range(size)])


def multi_head(w: Weights, config: BertConfig, layer: int, x: Numbers, side: str = "encoder") -> Numbers:
    name, size = f"{side}.layers.{layer}.attention", config.hidden_size // config.num_attention_heads
    needs_key = config.attention.score != "location"
    query, key, value = (
        np.array([linear(w, f"{name}.{which}", token) for token in x])
        for which in ("query", "key" if needs_key else "query", "value")
    )
    num_heads = config.num_attention_heads
    share = num_heads // (config.attention.key_value_heads or num_heads)  # Ainslie et al. 2023, section 2.2
    heads = []
    for number in range(num_heads):
        p, of_keys = (slice(n * size, (n + 1) * size) for n in (number, number // share))
        heads.append(head(w, config, layer, number, query[:, p], key[:, of_keys], value[:, of_keys], side))
    return np.array([linear(w, f"{name}.output", token) for token in np.concatenate(heads, 1)])


def look_across(w: Weights, config: BertConfig, layer: int, x: Numbers, source: Numbers) -> Numbers:
    """Vaswani et al. 2017, equation 1, from one text to another."""
    name, num_heads = f"decoder.layers.{layer}.cross_attention", config.num_attention_heads
    contexts = []
    for token in x:
        of_heads = []
        for query, keys, values in zip(
            np.split(linear(w, f"{name}.query", token), num_heads),
            np.split(np.array([linear(w, f"{name}.key", each) for each in source]), num_heads, 1),
            np.split(np.array([linear(w, f"{name}.value", each) for each in source]), num_heads, 1),
            strict=True,
        ):
            of_heads.append(softmax(keys @ query / len(query) ** 0.5) @ values)
        contexts.append(linear(w, f"{name}.output", np.concatenate(of_heads)))
    return np.array(contexts)


def feed_forward(w: Weights, config: BertConfig, layer: int, token: Numbers, side: str = "encoder") -> Numbers:
    name = f"{side}.layers.{layer}.feed_forward"
    inner, gate = linear(w, f"{name}.intermediate", token), 1
    if config.feed_forward.kind == "glu":  # Shazeer 2020, equation 6
        inner, gate = np.split(inner, 2)
    if config.feed_forward.kind == "two_map_glu":  # the same
        gate = linear(w, f"{name}.gate", token)
    shown = inner * (inner.real > 0) if config.hidden_act == "relu" else inner / (1 + np.exp(-inner))  # or silu
    return linear(w, f"{name}.output", shown * gate)


def encode(w: Weights, config: BertConfig, ids: list[int], types: list[int]) -> tuple[Numbers, Numbers]:
    """The last hidden state of one sequence, (T, D), and its pooled output, (D,)."""
    tokens = []
    for place, (id_, type_) in enumerate(zip(ids, types, strict=True)):
        token = w["embeddings.token.weight"][id_]
        if config.attention.positions == "sinusoidal":
            token = token * config.hidden_size**0.5 + sinusoid(place, config.hidden_size)
        if config.attention.positions == "learned" or config.attention.also_learned:
            token = token + w["embeddings.position.weight"][place]
        if config.type_vocab_size:
            token = token + w["embeddings.segment.weight"][type_]
        if config.task_type_vocab_size:  # of the first task; Sun et al. 2020 (ERNIE 2.0), section 3.3
            token = token + w["embeddings.task.weight"][0]
        maps = config.embedding_size is not None
        if maps and config.projects_first:
            token = w["embeddings.first_projection.weight"] @ token
        token = norm(w, "embeddings.norm", token, config) if config.norm.of_embeddings else token
        tokens.append(linear(w, "embeddings.projection", token) if maps and not config.projects_first else token)
    x = embedded = np.array(tokens)
    for number in range(config.num_hidden_layers):
        layer = 0 if config.shared_layers else number  # Lan et al. 2020, section 3.1, as is the projection
        first, second = (f"encoder.layers.{layer}.{part}_norm" for part in ("attention", "feed_forward"))
        if config.norm.placement == "pre":  # Xiong et al. 2020, table 1, right
            is_bare = layer == 0 and not config.norm.before_first
            normed = x if is_bare else np.array([norm(w, first, token, config) for token in x])
            x = x + multi_head(w, config, layer, normed)
            x = np.array([token + feed_forward(w, config, layer, norm(w, second, token, config)) for token in x])
        else:
            mixed = multi_head(w, config, layer, x)
            x = np.array([norm(w, first, token + more, config) for token, more in zip(x, mixed, strict=True)])
            x = np.array([norm(w, second, token + feed_forward(w, config, layer, token), config) for token in x])
        if number == 0 and config.convolution:
            x = np.array(
                [
                    norm(w, "encoder.layers.0.convolution_norm", token, config)
                    for token in x + convolved(w, config, embedded)
                ]
            )
    if config.norm.placement == "pre":
        x = np.array([norm(w, "encoder.norm", token, config) for token in x])
    activation = {"tanh": np.tanh, "relu": lambda x: np.where(x.real > 0, x, 0)}[config.pooler_act]
    if config.pooling == "late_mean":
        return x, sum(activation(linear(w, "pooler.dense", token)) for token in x) / len(x)
    if config.pooling in ("first", "cls"):
        pooled = x[0]
    elif config.pooling in ("mean", "plain_mean"):
        pooled = sum(x) / len(x)
    else:  # Raffel and Ellis 2016, equations 2 to 4
        shares = softmax(np.array([np.tanh(linear(w, "pooler.score", token))[0] for token in x]))
        pooled = sum(share * token for share, token in zip(shares, x, strict=True))
    return x, activation(linear(w, "pooler.dense", pooled)) if "pooler.dense.weight" in w else pooled


def convolved(w: Weights, config: BertConfig, x: Numbers) -> Numbers:
    """What modeling_deberta_v2.py `ConvLayer` adds to the output of the first layer: (T, D)."""
    assert config.convolution is not None
    name, size, groups = "encoder.layers.0.convolution", config.convolution.kernel_size, config.convolution.groups
    width, sums = x.shape[1] // groups, np.array([w[f"{name}.bias"]] * len(x))
    for t in range(len(x)):
        for d in range(x.shape[1]):
            group = slice(d // width * width, d // width * width + width)
            for k in range(size):
                if 0 <= t + k - size // 2 < len(x):
                    sums[t, d] += (w[f"{name}.weight"][d, :, k] * x[t + k - size // 2, group]).sum()
    return np.tanh(sums) if config.convolution.act == "tanh" else sums / (1 + np.exp(-sums))


def translate(w: Weights, config: BertConfig, source: list[int], target: list[int]) -> Numbers:
    """The logits of an encoder-decoder, (T, V): Vaswani et al. 2017, section 3, with the self-attention of the config."""
    of_target = replace(config, attention=replace(config.attention, pattern="causal"))
    encoded: Numbers = np.empty(0)
    for side, ids, own in (("encoder", source, config), ("decoder", target, of_target)):
        x = np.array([w["embeddings.token.weight"][token] for token in ids]) * config.hidden_size**0.5
        if config.attention.positions == "sinusoidal":
            x = x + np.array([sinusoid(place, config.hidden_size) for place in range(len(ids))])
        if config.attention.positions == "learned" or config.attention.also_learned:
            x = x + w["embeddings.position.weight"][: len(ids)]
        parts = {"attention": lambda y, n, own=own, side=side: multi_head(w, own, n, y, side)}
        if side == "decoder":
            parts["cross_attention"] = lambda y, n, encoded=encoded: look_across(w, config, n, y, encoded)
        parts["feed_forward"] = lambda y, n, side=side: np.array([feed_forward(w, config, n, each, side) for each in y])
        for layer in range(config.num_hidden_layers):
            for part, of in parts.items():
                name = f"{side}.layers.{layer}.{part}_norm"
                if config.norm.placement == "pre":
                    x = x + of(np.array([norm(w, name, token, config) for token in x]), layer)
                else:
                    x = np.array([norm(w, name, token, config) for token in x + of(x, layer)])
        if config.norm.placement == "pre":
            x = np.array([norm(w, f"{side}.norm", token, config) for token in x])
        encoded = x
    return encoded @ w["embeddings.token.weight"].T
