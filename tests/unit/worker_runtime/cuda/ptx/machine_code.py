#!/usr/bin/env python3
"""What ptxas made of each kernel, as a table that a test compares with machine_code.txt: a change shows as a diff.

machine_code.py GOLDEN OBJECT…           exit code 1 and the difference, or 77 where cuobjdump or this nvcc's version is missing
machine_code.py --rewrite GOLDEN OBJECT…  writes the table

Columns: registers of a thread; bytes of spills and other local memory; bytes of shared memory that the launch asks for or that
are the kernel's own; blocks that a multiprocessor holds and the share of its threads that they are; widths in bits of loads from
and stores to global memory; loads from shared memory by number of 16 bits wide ones and of whole matrices (ldmatrix);
products by tensor cores; instructions.
"""
import difflib
import glob
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77
# Of a multiprocessor. Source: CUDA C++ Programming Guide, "Technical specifications per compute capability"
REGISTERS, THREADS, BLOCKS = 65536, {80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}, 32
SHARED = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}  # KiB


def find_cuobjdump():
    home = os.environ.get('XDG_CACHE_HOME', os.path.expanduser('~/.cache'))
    places = [shutil.which('cuobjdump'), '/usr/local/cuda/bin/cuobjdump']
    # PyTorch's Triton brings one.
    places += sorted(glob.glob(home + '/muster/peers-*/lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump'))
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    print('cuobjdump is not installed here')
    sys.exit(SKIPPED)


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def short(name):
    """Of a demangled one."""
    name = name.replace('(anonymous namespace)::', '')
    name = re.sub(r'muster::kernels::(cuda::)?', '', name)
    name = re.sub(r'^void ', '', name).replace('unsigned short', 'bf16').replace('Half', 'f16')
    depth = 0
    for i, c in enumerate(name):
        depth += {'<': 1, '>': -1}.get(c, 0)
        if c == '(' and depth == 0:
            return name[:i]
    return name


def threads_of(source, kernel):
    if source == 'cross_entropy' and kernel.startswith('RowKernel'):
        return 768
    return 32 if kernel.startswith(('DecideKernel', 'RoundKernel<')) else 128


def dynamic_shared(source, kernel):
    """As the launches of attention ask for it."""
    found = re.match(r'(Forward|KeyGradient|QueryGradient)Kernel<(\w+), \(?(?:int\))?(\d+)>', kernel)
    if source != 'attention' or not found:
        return 0
    size = 4 if found[2] == 'float' else 2
    tile = lambda width: 64 * (width + 16 // size) * size
    scores = tile(64) if size == 4 else 0
    return (3 if found[1] == 'Forward' else 4) * tile(int(found[3])) + scores + 12 * 64


def widths(opcodes, prefix):
    counts = {}
    for opcode in opcodes:
        if opcode.startswith(prefix + '.'):
            bits = next((n for word, n in (('.128', 128), ('.64', 64), ('16', 16), ('8', 8)) if word in opcode), 32)
            counts[bits] = counts.get(bits, 0) + 1
    return ' '.join(f'{count}x{bits}' for bits, count in sorted(counts.items())) or '-'


def rows_of(cuobjdump, path):
    source = os.path.basename(path).split('.')[0]
    usage = said(cuobjdump, '-res-usage', path)
    resources, arch = {}, 0
    for line in usage.splitlines():
        if found := re.match(r'arch = sm_(\d+)', line):
            arch = int(found[1])
        elif found := re.match(r' Function (\S+):', line):
            name = found[1]
        elif found := re.search(r'REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)', line):
            resources[arch, name] = [int(x) for x in found.groups()]
    code, arch, name = {}, 0, None
    for line in said(cuobjdump, '-sass', path).splitlines():
        if found := re.match(r'\s*code for sm_(\d+)', line):
            arch = int(found[1])
        elif found := re.match(r'\s*Function : (\S+)', line):
            name = found[1]
            code[arch, name] = []
        elif found := re.match(r'\s*/\*[0-9a-f]{4,}\*/\s+(.*?);', line):
            code[arch, name].append(found[1])
    demangled = subprocess.run(['c++filt'], input='\n'.join(name for _, name in code), check=True, capture_output=True,
                               text=True).stdout.splitlines()
    for ((arch, name), lines), full in zip(code.items(), demangled):
        registers, stack, static, local = resources[arch, name]
        kernel = short(full)
        threads = threads_of(source, kernel)
        # Registers are given to warps, 256 at a time; of shared memory each block has 1 KiB that is not its own.
        own = max(static - 1024, 0) + dynamic_shared(source, kernel)
        per_block = -(-registers * 32 // 256) * 256 * (threads // 32)
        blocks = min(BLOCKS, THREADS[arch] // threads, REGISTERS // per_block, SHARED[arch] * 1024 // (own + 1024))
        opcodes = [re.sub(r'^@!?U?P\w+ ', '', line).split()[0] for line in lines]
        yield (source, kernel, f'sm_{arch}', registers, stack + local, own,
               f'{blocks} ({100 * blocks * threads // THREADS[arch]} %)', widths(opcodes, 'LDG'), widths(opcodes, 'STG'),
               sum(x.startswith('LDS.U16') for x in opcodes), sum(x.startswith('LDSM') for x in opcodes),
               sum(x.startswith('HMMA') for x in opcodes), sum(x != 'NOP' for x in opcodes))


def table_of(objects):
    cuobjdump = find_cuobjdump()
    version = re.search(r'release (\S+),', said(os.environ.get('NVCC', 'nvcc'), '--version'))[1]
    head = ('file', 'kernel', 'for', 'registers', 'spills', 'shared', 'blocks', 'loads', 'stores', 'u16', 'matrices',
            'products', 'instructions')
    rows = sorted(row for path in objects for row in rows_of(cuobjdump, path))
    text = [[str(x) for x in row] for row in [head, *rows]]
    width = [max(len(row[i]) for row in text) for i in range(len(head))]
    lines = [f'nvcc {version}'] + ['  '.join(x.ljust(w) for x, w in zip(row, width)).rstrip() for row in text]
    return [line + '\n' for line in lines]


def main():
    arguments = sys.argv[1:]
    rewrite = arguments[0] == '--rewrite'
    golden, objects = arguments[rewrite], arguments[rewrite + 1:]
    table = table_of(objects)
    if rewrite:
        with open(golden, 'w', encoding='utf-8') as file:
            file.writelines(table)
        return
    with open(golden, encoding='utf-8') as file:
        expected = file.readlines()
    if expected[0] != table[0]:
        print(f'the table is of {expected[0].strip()}, and this is {table[0].strip()}')
        sys.exit(SKIPPED)
    difference = list(difflib.unified_diff(expected, table, 'machine_code.txt', 'this build'))
    sys.stdout.writelines(difference)
    if difference:
        print('to accept it: ' + ' '.join([sys.argv[0], '--rewrite', golden, *objects]))
        sys.exit(1)


main()
