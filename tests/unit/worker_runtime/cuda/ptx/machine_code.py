#!/usr/bin/env python3
"""What ptxas made of each kernel, as a table that a test compares with machine_code.txt: a change
shows as a diff.

machine_code.py GOLDEN OBJECT…            exit code 1 and the difference, or 77 where cuobjdump or
                                          this nvcc's version is missing
machine_code.py --rewrite GOLDEN OBJECT…  writes the table
  --architectures=80,…                    compiles all kernels for those, in place of OBJECT…;
                                          takes minutes

The table may have rows for several architectures. Those of the objects' alone are compared, and
written.

Columns: registers of a thread; bytes of spills and other local memory; bytes of shared memory that
the launch asks for or that are the kernel's own; blocks that a multiprocessor holds and the share
of its threads that they are; widths in bits of loads from and stores to global memory; loads from
shared memory by number of 16 bits wide ones and of whole matrices (ldmatrix); products by tensor
cores; instructions, and those of them in the longest loop.
"""
import difflib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
# Of a multiprocessor. Source: CUDA C++ Programming Guide, "Technical specifications per compute
# capability"
REGISTERS = 65536
BLOCKS = {80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
THREADS = {80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
SHARED = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}  # KiB


def find_cuobjdump():
    home = os.environ.get('XDG_CACHE_HOME', os.path.expanduser('~/.cache'))
    places = [shutil.which('cuobjdump'), '/usr/local/cuda/bin/cuobjdump']
    # PyTorch's Triton brings one.
    places += sorted(glob.glob(home + '/muster/peers-*/lib/python*/site-packages/triton/backends/'
                               'nvidia/bin/cuobjdump'))
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
    name = name.replace('(NormKind)0', 'layer').replace('(NormKind)1', 'rms')
    depth = 0
    for i, c in enumerate(name):
        depth += {'<': 1, '>': -1}.get(c, 0)
        if c == '(' and depth == 0:
            return name[:i]
    return name


def threads_of(source, kernel):
    if source == 'cross_entropy' and kernel.startswith('RowKernel'):
        return 768
    if kernel.startswith('AddStripsKernel'):
        return 512
    return 32 if kernel.startswith(('DecideKernel', 'RoundKernel<')) else 128


def dynamic_shared(source, kernel):
    """As the launches ask for it, rows being those of GPT-2 124M."""
    if kernel.startswith(('AddStripsKernel', 'GradientStripKernel')):
        return 4 * threads_of(source, kernel)
    if source == 'rotary':
        return 4 * 64
    if source == 'norm' and kernel.startswith('StripKernel'):
        return 2 * 4 * 768
    if source == 'embedding' and 'GradientKernel' in kernel and not kernel.startswith('Position'):
        matches = 4 * 128 + 4 * 4
        return matches if kernel.startswith('Bucket') else matches + 2048 * (4 + 2)
    found = re.match(r'(Forward|KeyGradient|QueryGradient)Kernel<(\w+), (\d+), (\d+)>', kernel)
    if source != 'attention' or not found:
        return 0
    # attention_tiles.h
    size, width, rows = 4 if found[2] == 'float' else 2, int(found[3]), int(found[4])
    tile = lambda rows, width: rows * (width + 16 // size) * size
    own = 64 if found[1] == 'Forward' else 128
    return tile(own + 2 * rows, width) + (tile(64, rows) if size == 4 else 0) + 12 * 64


def widths(opcodes, prefix):
    counts = {}
    for opcode in opcodes:
        if opcode.startswith(prefix + '.'):
            words = (('.128', 128), ('.64', 64), ('16', 16), ('8', 8))
            bits = next((n for word, n in words if word in opcode), 32)
            counts[bits] = counts.get(bits, 0) + 1
    return ' '.join(f'{count}x{bits}' for bits, count in sorted(counts.items())) or '-'


def longest_loop(lines):
    """Instructions from the target of a branch back to that branch."""
    longest = 0
    for at, line in lines:
        found = re.search(r'\bBRA\b.*(0x[0-9a-f]+)\s*$', line)
        if found and int(found[1], 16) < at:
            longest = max(longest, sum(int(found[1], 16) <= other <= at for other, _ in lines))
    return longest


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
        elif found := re.match(r'\s*/\*([0-9a-f]{4,})\*/\s+(.*?);', line):
            code[arch, name].append((int(found[1], 16), found[2]))
    demangled = subprocess.run(['c++filt'], input='\n'.join(name for _, name in code), check=True,
                               capture_output=True, text=True).stdout.splitlines()
    for ((arch, name), lines), full in zip(code.items(), demangled):
        registers, stack, static, local = resources[arch, name]
        kernel = short(full)
        threads = threads_of(source, kernel)
        # Registers are given to warps, 256 at a time; of shared memory each block has 1 KiB that is
        # not its own.
        own = max(static - 1024, 0) + dynamic_shared(source, kernel)
        per_block = -(-registers * 32 // 256) * 256 * (threads // 32)
        blocks = min(BLOCKS[arch], THREADS[arch] // threads, REGISTERS // per_block,
                     SHARED[arch] * 1024 // (own + 1024))
        opcodes = [re.sub(r'^@!?U?P\w+ ', '', line).split()[0] for _, line in lines]
        yield (source, kernel, f'sm_{arch}', registers, stack + local, own,
               f'{blocks} ({100 * blocks * threads // THREADS[arch]} %)', widths(opcodes, 'LDG'),
               widths(opcodes, 'STG'), sum(x.startswith('LDS.U16') for x in opcodes),
               sum(x.startswith('LDSM') for x in opcodes),
               sum(x.startswith('HMMA') for x in opcodes), sum(x != 'NOP' for x in opcodes),
               longest_loop(lines))


HEAD = ('file', 'kernel', 'for', 'registers', 'spills', 'shared', 'blocks', 'loads', 'stores',
        'u16', 'matrices', 'products', 'instructions', 'loop')


def nvcc():
    return os.environ.get('NVCC', 'nvcc')


def rows_of_objects(objects):
    cuobjdump = find_cuobjdump()
    return [[str(x) for x in row] for path in objects for row in rows_of(cuobjdump, path)]


def text_of(version, rows):
    """In the order of architectures within a kernel."""
    rows = sorted(rows, key=lambda row: (row[0], row[1], int(row[2][3:])))
    width = [max(len(row[i]) for row in [HEAD, *rows]) for i in range(len(HEAD))]
    return [version] + ['  '.join(x.ljust(w) for x, w in zip(row, width)).rstrip() + '\n'
                        for row in [HEAD, *rows]]


def read(golden):
    """Its first line, and its rows."""
    with open(golden, encoding='utf-8') as file:
        lines = file.readlines()
    return lines[0], [re.split(r'  +', line.rstrip('\n')) for line in lines[2:]]


def compiled(architectures, folder):
    """Objects of all kernels for those, made as kernels/cuda_kernels.cmake has them made."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), *['..'] * 5)
    kernels = os.path.join(root, 'worker_runtime', 'kernels')
    objects = []
    for source in sorted(glob.glob(os.path.join(kernels, '*.cu'))):
        objects.append(os.path.join(folder, os.path.basename(source) + '.o'))
        codes = [f'-gencode=arch=compute_{n},code=sm_{n}' for n in architectures]
        said(nvcc(), '-std=c++20', '-O3', *codes, '-fmad=false', '-lineinfo', '-I' + root,
             '-DMUSTER_KERNEL_ISAS=1', '-c', source, '-o', objects[-1])
    return objects


def main():
    arguments = sys.argv[1:]
    rewrite = arguments[0] == '--rewrite'
    del arguments[:rewrite]
    architectures = []
    if arguments[0].startswith('--architectures='):
        architectures = arguments.pop(0).split('=')[1].split(',')
    golden, objects = arguments[0], arguments[1:]
    find_cuobjdump()
    release = re.search(r'release (\S+),', said(nvcc(), '--version'))[1]
    version = f'nvcc {release}\n'
    expected_version, expected = read(golden)
    if version != expected_version and not rewrite:
        print(f'the table is of {expected_version.strip()}, and this is {version.strip()}')
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of_objects(compiled(architectures, folder) if architectures else objects)
    has = {row[2] for row in rows}
    others = [row for row in expected if row[2] not in has]
    if rewrite:
        with open(golden, 'w', encoding='utf-8') as file:
            file.writelines(text_of(version, others + rows))
        return
    kernels = {}  # by architecture, as a set
    for row in expected:
        kernels.setdefault(row[2], set()).add((row[0], row[1]))
    stale = [name for name, of in kernels.items() if of != kernels[expected[0][2]]]
    if stale:
        print(f'the rows of {expected[0][2]} and of {", ".join(stale)} are of different kernels; '
              f'{sys.argv[0]} --rewrite --architectures=… {golden} writes them')
        sys.exit(1)
    difference = list(difflib.unified_diff(text_of(version, expected),
                                           text_of(version, others + rows), 'machine_code.txt',
                                           'this build'))
    sys.stdout.writelines(difference)
    if difference:
        print('to accept it: ' + ' '.join([sys.argv[0], '--rewrite', golden, *objects]))
        sys.exit(1)


main()
