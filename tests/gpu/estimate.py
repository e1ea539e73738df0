#!/usr/bin/env python3
"""Estimates tokens/s of a training step on a GPU, from what can be counted without one (launches,
the shapes of every product, the bytes that every kernel must move as cuda_kernels_traffic_test
counts them in nvcc's PTX) and from rates that others have published. Prints tables: each product
with the alignment of its rows, the terms of a token's time, and tokens/s beside the goals. Exits
with 1 if a product's rows begin on less than 16 bytes, if llm.c's shapes do not give llm.c's own
figure within 20 %, if our shapes give less than they did when this was written, or if it expects
something of a kernel that kernel_figures does not time.

estimate.py [--gpu=h100|h200] [--attention=cudnn|own] [--vocabulary=padded|odd] [--products]
estimate.py --expected [--gpu=…]: what run_all and kernel_figures print beside what they measure,
                                  as lines "tokens|model|attention|value" and "kernel|name|value"
"""
import argparse
import math
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MACHINE_CODE = HERE + '/../unit/worker_runtime/cuda/ptx/machine_code.txt'

# --- Rates. All of bf16, dense, sums in f32.
GPUS = {
    # Peak of a large product (cuBLAS, 8192 cubed: 700 to 800 of 989 TFLOP/s at 700 W; llm.c's
    # discussions 481 and 580), multiprocessors, and rate of a plain copy (of 3.35 and 4.8 TB/s).
    'h100': (790e12, 132, 3.0e12),
    'h200': (790e12, 132, 4.3e12),
}
ARCHITECTURE = 'sm_90'  # of both
CLOCK = 1.83e9  # at which 4096 operations a cycle of 132 multiprocessors are the 989 TFLOP/s
INSTRUCTIONS_A_CYCLE = 2  # of the 4 that a multiprocessor can begin
# Attention of heads of 64 over 1024 tokens, causal, forward and backward: cuDNN 9. Source: Shah et
# al., "FlashAttention-3", 2024, figures 5 and 6
CUDNN_ATTENTION = (240e12, 190e12)
ATTENTIONS = ('cudnn', 'own')
# The share of the copy's rate that kernels over rows or flat arrays reach. Source: llm.c's own
# kernels, by its comments and profiles
SHARE = 0.80
SHARE_COLUMNS = 0.60  # sums over rows
CACHE = 3.35e12  # bytes a second out of the second cache, at least: what memory's data sheet says
# Products whose rows begin on 2 bytes: kernels for that (pytorch issues 181718, 146817).
UNALIGNED = 120e12
# Seconds from the end of one kernel to the start of the next, within a CUDA graph and without.
# Source: NVIDIA, "Constant Time Launch for Straight-Line CUDA Graphs", 2024
GAP = {True: 1.0e-6, False: 1.6e-6}
# What no counting sees: clocks under load, jitter, cold caches at the start of kernels. Set by
# llm.c, which gets 468 K on an H100 where its own terms sum to a tenth more; both are printed.
REALITY = 0.92

LLMC_124M = 468e3  # Source: Karpathy, llm.c discussion 481 and its successors, one H100 SXM
MODELS = {  # layers, heads, width, batch of run_all, goal, reached when this was written
    '124M': (12, 12, 768, 32, 500e3, 475e3),
    '350M': (24, 16, 1024, 32, 185e3, 186e3),
    '774M': (36, 20, 1280, 16, 90e3, 85e3),
    '1.5B': (48, 25, 1600, 16, 48e3, 44.9e3),
}
CONTEXT, VOCABULARY, PADDED, CHUNK = 1024, 50257, 50304, 5120


def product_seconds(gpu, m, n, k, aligned=True):
    """Seconds of a product in tiles of 128 x 256 (or 128 x 128, if they fill the GPU better).

    The beginning of each tile is not overlapped. Products with fewer tiles than multiprocessors are
    cut along k."""
    peak, multiprocessors, _ = GPUS[gpu]
    if not aligned:
        return 2 * m * n * k / UNALIGNED
    best = 0
    for columns, of_peak in ((256, 1.0), (128, 0.90)):
        tiles, depth = math.ceil(m / 128) * math.ceil(n / columns), k
        pieces = max(1, min(8, multiprocessors // tiles, k // 1024))
        tiles, depth = tiles * pieces, depth / pieces
        waves = tiles / (math.ceil(tiles / multiprocessors) * multiprocessors)
        useful = (m / (math.ceil(m / 128) * 128)) * (n / (math.ceil(n / columns) * columns))
        best = max(best, of_peak * waves * useful * depth / (depth + 128))
    return 2 * m * n * k / (peak * best)


def attention_rates(gpu, attention):
    """Operations a second, forward and backward. Ours: by the instructions that each of a block's
    four warps executes for a tile of 64 x 64 (machine_code.txt); tiles on the diagonal are worked
    as a whole, and 5 products are counted backward."""
    if attention == 'cudnn':
        return CUDNN_ATTENTION
    loop = {}
    with open(MACHINE_CODE, encoding='utf-8') as file:
        lines = [re.split(r'  +', line.rstrip()) for line in file.readlines()[1:]]
    column = lines[0].index('loop')
    for cells in lines[1:]:
        if cells[0] == 'attention' and cells[2] == ARCHITECTURE and 'bf16, 64, 64>' in cells[1]:
            loop[cells[1].split('Kernel')[0]] = int(cells[column])

    def rate(counted, *kernels):
        cycles = 4 * sum(loop[kernel] for kernel in kernels) / INSTRUCTIONS_A_CYCLE
        whole_tiles = CONTEXT / (CONTEXT + 64)
        return counted * 2 * 64**3 / cycles * GPUS[gpu][1] * CLOCK * whole_tiles

    return rate(2, 'Forward'), rate(5, 'KeyGradient', 'QueryGradient')


def embedding_seconds(gpu, width, rows):
    """Forward and backward, of a token. A gradient is read, added to the token's sum in float,
    which is read and written, and read again for its position (cuda_kernels_traffic_test). Each
    bucket of tokens looks at all of them (embedding.cu), which lie in the cache."""
    moving = GPUS[gpu][2] * SHARE
    return 6 * width / moving, 12 * width / moving + 4 * min(1024, rows / 32) / CACHE


def products(layers, width, rows, padded, f32_gradients):
    """Name, how often, m, n, k, bytes of the rows of a, b and c, as cuda_operations.cc asks."""
    of_weights = 4 if f32_gradients else 2
    for name, outs, ins in (
        ('qkv', 3 * width, width),
        ('projection', width, width),
        ('up', 4 * width, width),
        ('down', width, 4 * width),
    ):
        yield f'{name}', layers, rows, outs, ins, (2 * ins, 2 * ins, 2 * outs)
        yield f'{name}, input', layers, rows, ins, outs, (2 * outs, 2 * ins, 2 * ins)
        yield f'{name}, weight', layers, outs, ins, rows, (2 * outs, 2 * ins, of_weights * ins)
    vocabulary = PADDED if padded else VOCABULARY
    chunk = min(rows, CHUNK if padded else 5341)
    times = rows / chunk
    yield 'head', times, chunk, vocabulary, width, (2 * width, 2 * width, 2 * vocabulary)
    yield 'head, input', times, chunk, width, vocabulary, (2 * vocabulary, 2 * width, 2 * width)
    yield 'head, table', times, vocabulary, width, chunk, (
        2 * vocabulary,
        2 * width,
        of_weights * width,
    )


def terms(gpu, layers, width, batch, attention, padded, llmc=False, micro_batches=1):
    """Seconds of a token by what they go to."""
    rows = batch * CONTEXT
    copy = GPUS[gpu][2]
    out = {}
    of_products = {True: 0.0, False: 0.0}
    for name, times, m, n, k, bytes_of_rows in products(layers, width, rows, padded, not llmc):
        aligned = all(b % 16 == 0 for b in bytes_of_rows)
        of_products[name.startswith('head')] += (
            times * product_seconds(gpu, m, n, k, aligned) / rows
        )
    out['products of layers'], out['products of the head'] = of_products[False], of_products[True]
    forward, backward = attention_rates(gpu, attention)
    flops = 2 * CONTEXT * width * layers  # two products, half of each
    out['attention'] = flops / forward + 2.5 * flops / backward

    def moved(bytes_per_token, share=SHARE):
        return bytes_per_token / (copy * share)

    # Bytes for each number of a row (cuda_kernels_traffic_test): forward 4, gradients with what the
    # input's is added to 8.
    norms = 2 * layers + 1
    if llmc:
        out['layer norm'] = moved(norms * width * (8 + 8))  # with the residual
        out['GELU'] = moved(layers * 4 * width * (4 + 6))   # its default
        out['gradients of biases'] = moved(layers * 9 * width * 2, SHARE_COLUMNS)
    else:
        out['layer norm'] = moved(norms * width * (4 + 8))
        out['residual, GELU and bias on products\' way'] = (
            moved(layers * width * (2 * 2 + 4 * 2 + 4 * 2), 0.9) / 2
        )
        out['gradients of biases'] = moved(layers * 9 * width * 2, SHARE_COLUMNS)
    out['cross-entropy'] = moved(
        (PADDED if padded else VOCABULARY) * 4 * (1 if padded else 1.5), 0.8 if padded else 0.65
    )
    out['embedding'] = moved(width * (6 + 8)) if llmc else sum(embedding_seconds(gpu, width, rows))
    parameters = (
        (VOCABULARY + CONTEXT) * width + layers * (12 * width * width + 13 * width) + 2 * width
    )
    if padded and not llmc:
        out['the table\'s copy'] = moved(4 * PADDED * width) / rows
    out['update'] = moved(parameters * ((28 + 2) if llmc else (30 + 4))) / (rows * micro_batches)
    updates = 16  # a launch for each tensor of a layer in llm.c, for each bucket in ours
    launches = layers * (12 + 12) + 30 + updates / micro_batches
    out['between kernels'] = launches * GAP[not llmc] / rows
    return out


def report(name, parts):
    total = sum(parts.values())
    print(
        f'\n{name}: {REALITY / total / 1e3:.0f} K tokens/s\n\n'
        '| term | us per token | share |\n| --- | --- | --- |'
    )
    for term, seconds in sorted(parts.items(), key=lambda x: -x[1]):
        print(f'| {term} | {1e6 * seconds:.3f} | {100 * seconds / total:.1f} % |')
    return REALITY / total


def expected_of_kernels(gpu):
    """By the beginning of their names in kernel_figures.cc."""
    copy = GPUS[gpu][2]
    rows, width = 16 * CONTEXT, 768
    of_embedding = 12 * width / embedding_seconds(gpu, width, rows)[1] / copy
    shares = {'AdamW': SHARE, 'norm': SHARE, 'layer norm': SHARE, 'GELU': SHARE,
              'RMS norm': SHARE, 'SwiGLU': SHARE, 'rotary': SHARE,
              'bias\'s gradient': SHARE_COLUMNS,
              'cross-entropy': SHARE, 'embedding': SHARE, 'embedding\'s gradients': of_embedding}
    rates = {}
    for attention, name in (('own', 'our attention{}'), ('cudnn', 'attention{} by cuDNN')):
        forward, backward = attention_rates(gpu, attention)
        rates[name.format('')], rates[name.format('\'s gradient')] = forward, backward
    shapes = {'head': (CHUNK, PADDED, width), 'head, input\'s gradient': (CHUNK, width, PADDED),
              'head, table\'s gradient': (PADDED, width, CHUNK),
              'width to 4 x width': (CHUNK, 4 * width, width)}
    for name, (m, n, k) in shapes.items():
        rates[name] = 2 * m * n * k / product_seconds(gpu, m, n, k)
    return {**{name: f'{100 * share:.0f} %' for name, share in shares.items()},
            **{name: f'{rate / 1e12:.0f} TFLOP/s' for name, rate in rates.items()}}


def print_expected(gpu):
    for model, (layers, _, width, batch, *_rest) in MODELS.items():
        for attention in ATTENTIONS:
            speed = REALITY / sum(terms(gpu, layers, width, batch, attention, True).values())
            print(f'tokens|{model}|{attention}|{speed / 1e3:.3g}k')
    for name, value in expected_of_kernels(gpu).items():
        print(f'kernel|{name}|{value}')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu', choices=GPUS, default='h100')
    parser.add_argument('--attention', choices=ATTENTIONS, default='cudnn')
    parser.add_argument('--vocabulary', choices=('padded', 'odd'), default='padded')
    parser.add_argument(
        '--products', action='store_true', help='also each product with the alignment of its rows'
    )
    parser.add_argument('--expected', action='store_true', help='what is expected, for run_all')
    options = parser.parse_args()
    if options.expected:
        return print_expected(options.gpu)
    padded = options.vocabulary == 'padded'
    with open(HERE + '/kernel_figures.cc', encoding='utf-8') as file:
        timed = file.read()
    bad = [f'kernel_figures times no {name}' for name in expected_of_kernels(options.gpu)
           if f'"{name.split(" by ")[0]}' not in timed]
    if options.products:
        print(
            '| model | product | times | m | n | k | rows begin on | TFLOP/s |\n'
            + '| --- ' * 8
            + '|'
        )
    for model, (layers, _, width, batch, *_rest) in MODELS.items():
        for name, times, m, n, k, sizes in products(layers, width, batch * CONTEXT, padded, True):
            alignment = min(math.gcd(size, 256) for size in sizes)
            if alignment < 16:
                bad.append(f'{model}, {name}: rows begin on {alignment} bytes')
            if options.products:
                rate = 2e-12 * m * n * k / product_seconds(options.gpu, m, n, k, alignment >= 16)
                print(
                    f'| {model} | {name} | {times:.3g} | {m} | {n} | {k} | {alignment} | '
                    f'{rate:.0f} |'
                )
    layers, _, width, _, _, _ = MODELS['124M']
    llmc = report(
        'llm.c, 124M, 64 x 1024 and 8 micro-batches, H100',
        terms('h100', layers, width, 64, 'cudnn', True, True, 8),
    )
    print(
        f'\nmeasured {LLMC_124M / 1e3:.0f} K: {100 * (llmc / LLMC_124M - 1):+.0f} %, and '
        f'{100 * (llmc / REALITY / LLMC_124M - 1):+.0f} % '
        f'without the factor {REALITY} that is in all figures'
    )
    if abs(llmc / LLMC_124M - 1) > 0.2:
        bad.append('llm.c is more than 20 % from its own figure')
    rows = []
    for model, (layers, _, width, batch, goal, reached) in MODELS.items():
        parts = terms(options.gpu, layers, width, batch, options.attention, padded)
        speed = report(
            f'{model}, {batch} x {CONTEXT}, {options.gpu}, attention {options.attention}, '
            f'vocabulary {options.vocabulary}',
            parts,
        )
        rows.append((model, speed, goal))
        if (options.gpu, options.attention, padded) == ('h100', 'cudnn', True) and speed < reached:
            bad.append(f'{model}: {speed / 1e3:.0f} K tokens/s, and it was {reached / 1e3:.0f} K')
    print('\n| GPT | tokens/s | goal | missing of a token\'s time |\n| --- | --- | --- | --- |')
    for model, speed, goal in rows:
        print(
            f'| {model} | {speed / 1e3:.0f} K | {goal / 1e3:.0f} K | '
            f'{max(0, 1e6 / speed - 1e6 / goal):.2f} us |'
        )
    for what in bad:
        print(f'estimate.py: {what}', file=sys.stderr)
    sys.exit(1 if bad else 0)


main()
