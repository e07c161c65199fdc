#!/usr/bin/env python3
"""sass.py - counts the instructions of the kernels' hot loops in the machine code of four architectures.

sass.py --ptxas PTXAS --disassembler NVDISASM MODULE.ptx...
                                 writes lines "kernel case architecture instructions bytes"
sass.py --table BEFORE COUNTS    writes two files of such lines as a part of docs/kernels.md

tools/kernels.sh calls both. ptxas assembles a module, and nvdisasm prints its machine code. The
count of a case is the length of the shortest closed walk through the control flow that executes
given instructions a given number of times (CASES): for example one store of 16 bytes and two loads.

- Every instruction of the walk counts once, also if its predicate is false.
- The walk makes no calls. Calls are the slow paths of divisions and square roots.
- The walk makes no accesses to global memory that the case does not name.
- A case must name enough instructions; otherwise the walk leaves out a part of the work.

tools/sass-before.txt has the counts of an older commit. The comment in its first line names the
commit, and docs/kernels.md describes how to write the file again.
"""
import argparse
import re
import subprocess
import sys
import tempfile

# A GPU of each architecture: name, multiprocessors, GHz, GB/s. SOURCES names the pages.
GPUS = {
    80: ("A100 80GB SXM", 108, 1.41, 2039),
    90: ("H200 SXM", 132, 1.98, 4800),
    100: ("B200", 148, 1.98, 8000),
    120: ("RTX 5090", 170, 2.407, 1792),
}
SOURCES = {
    80: "[1](https://www.techpowerup.com/gpu-specs/a100-sxm4-40-gb.c3506) (multiprocessors and clock, the same with 40 GB), "
    "[2](https://glennklockwood.com/garden/processors/A100) (memory)",
    90: "[1](https://ai-hpc.github.io/ai-hardware-engineer-roadmap/Phase%205%20-%20Advanced%20Topics%20and%20Specialization"
    "/1.%20GPU%20Infrastructure/Nvidia%20GPU/HPC%20Setup/8x-H200-Training-Inference/01-Hardware-Architecture) (multiprocessors, memory), "
    "[2](https://hmc-tech.com/gpu/nvidia-h100-vs-nvidia-h200-sxm-vs-nvidia-gb200) (clock)",
    100: "[1](https://hmc-tech.com/gpus/nvidia-b200-vs-nvidia-b100) (multiprocessors, clock; memory 7.7 TB/s), "
    "[2](https://glennklockwood.com/garden/processors/B200) (memory)",
    120: "[1](https://pocketmags.com/linux-format-magazine/may-2025/articles/nvidia-geforce-rtx-5090)",
}
# A multiprocessor has 4 schedulers. A scheduler issues an instruction for 32 threads per cycle (CUDA C++ Programming Guide,
# "Compute Capabilities", for 8.x, 9.0, 10.0 and 12.0).
ISSUE = 4 * 32

PHILOX = r"LOP3\.LUT.* 0x96,"  # exclusive or of three words: 19 times in a block of words, whose counter ends with 0
S4, S8, S16, U8, U16 = r"STG\.E ", r"STG\.E\.64 ", r"STG\.E\.128 ", r"STG\.E\.U8 ", r"STG\.E\.U16 "
L4, L16 = r"LDG\.E(\.CONSTANT)? ", r"LDG\.E\.128(\.CONSTANT)? "
WIDEN = r"HADD2\.F32 "
RCP = r"MUFU\.RCP"
NARROW = r"F2FP?\.F16\.F32"


def fill(case, several, whole, also=None):
    """A fill: a block of words, stored as several elements or as a whole."""
    size = {S4: 4, S8: 8, U8: 1, U16: 2}
    store, times = next(iter(several.items()))
    return case, size[store] * times, [{**stores, PHILOX: 19, **(also or {})} for stores in (several, whole)]


def reduction(case, also):
    return case, 48, [{S16: 1, L16: 2, **also}]


def copy(case, store, load, moved):
    """An element of three dimensions: two divisions, or the upper halves of two products."""
    return case, moved, [{store: 1, load: 1, RCP: 2}, {store: 1, load: 1, RCP: 0, r"IMAD\.HI\.U32": 2}]


# kernel: [(case, bytes read and written per walk, [what the walk executes, or this, ...])]. The walk goes through the
# first of these instructions; the shortest of several walks counts.
CASES = {
    "ds__comm_select": [reduction("maximum of 2 inputs", {})],
    "ds__comm_integers": [reduction("sum of 2 inputs", {})],
    "ds__comm_f32": [reduction("sum of 2 inputs", {r"FADD ": 8})],
    "ds__comm_f64": [reduction("sum of 2 inputs", {r"DADD ": 4})],
    "ds__comm_halves": [
        reduction("f16, sum of 2 inputs", {WIDEN: 16, r"FADD ": 16, NARROW: 8}),
        reduction("bf16, sum of 2 inputs", {r"FADD ": 16, r"V?IADD3?\b.* 0x7fff\b": 8}),
    ],
    "ds__comm_pack": [copy("f32, 3 dimensions", S4, L4, 8), copy("16 bytes, 3 dimensions", S16, L16, 32)],
    "ds__rng_uniform32": [fill("f32", {S4: 4}, {S16: 1})],
    "ds__rng_uniform": [fill("f16 or bf16", {U16: 4}, {S8: 1})],
    "ds__rng_uniform64": [fill("f64", {S8: 2}, {S16: 1})],
    "ds__rng_normal": [
        fill("f32", {S4: 4}, {S16: 1}, {r"MUFU\.RSQ": 2}),
        fill("f16 or bf16", {U16: 4}, {S8: 1}, {r"MUFU\.RSQ": 2}),
    ],
    "ds__rng_normal64": [fill("f64", {S8: 2}, {S16: 1})],
    "ds__rng_exponential": [fill("f32", {S4: 4}, {S16: 1}, {r"FCHK": 4, r".* 0\.07037683": 4})],
    "ds__rng_exponential64": [fill("f64", {S8: 2}, {S16: 1}, {r"MUFU\.RCP64H": 4})],
    "ds__rng_integers": [fill("u32", {S4: 4}, {S16: 1}), fill("u8", {U8: 4}, {S4: 1})],
    "ds__rng_wide_integers": [fill("u64", {S8: 2}, {S16: 1})],
    "ds__rng_bernoulli": [fill("u8", {U8: 4}, {S4: 1}), fill("u32", {S4: 4}, {S16: 1})],
    "histogram": [("bytes", 16, [{r"ATOMS\.": 16, L4: 4}])],
    "checksum": [("bytes", 16, [{L4: 4}])],
}


class Code:
    """The instructions of a kernel. next has the indices of the possible successors of each one."""

    def __init__(self, lines):
        self.text, labels, targets = [], {}, []
        for line in lines:
            label = re.match(r"(\.L_\w+|\$\w+):", line.strip())
            found = re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;?\s*(\(\*.*)?$", line)
            if label:
                labels[label.group(1)] = len(self.text)
            elif found:
                self.text.append(found.group(1).rstrip("; "))
                targets.append(re.findall(r"\.L_\w+|\$\w+", (found.group(1) + (found.group(2) or ""))))
        self.next = []
        for i, text in enumerate(self.text):
            guard = re.match(r"@!?U?P\w+ ", text)
            name = text[guard.end() if guard else 0 :]
            to = [labels[t] for t in targets[i] if t in labels]
            if name.startswith("BRX"):
                self.next.append(to)
            elif name.startswith("BRA"):
                falls = guard or re.search(r"BRA\S* !?U?P", name) or ".DIV" in name
                self.next.append(([] if ".DIV" in name else to) + ([i + 1] if falls else []))
            elif name.startswith(("EXIT", "RET", "CALL")):
                self.next.append([i + 1] if guard else [])
            else:
                self.next.append([i + 1])
        self.guarded = [bool(re.match(r"@!?U?P\w+ ", t)) for t in self.text]
        self.text = [re.sub(r"^@!?U?P\w+ ", "", t).replace(".reuse", "").replace(".ENL2", "") for t in self.text]


def shortest(code, wanted):
    """Returns the number of instructions in the shortest closed walk, or None. wanted: {pattern: times}."""
    patterns = [re.compile(p) for p in wanted]
    times = tuple(wanted.values())
    which = []
    for text in code.text:
        hits = [k for k, p in enumerate(patterns) if p.match(text)]
        access = re.match(r"(LDG|STG|LD|ST|ATOMG|ATOM|RED|REDG)[. ]", text)
        which.append(hits[0] if hits else -2 if access else -1)

    def ways(i, counts):  # the counts after instruction i
        k = which[i]
        if k == -1 or code.guarded[i]:
            yield counts
        if k >= 0 and counts[k] < times[k]:
            yield counts[:k] + (counts[k] + 1,) + counts[k + 1 :]

    best = None
    for start in [i for i, k in enumerate(which) if k == 0]:
        done = set()
        front = {(start, (0,) * len(times))}
        length = 0
        while front and (best is None or length < best):
            length += 1
            following = set()
            for i, counts in front:
                for after in ways(i, counts):
                    for to in code.next[i]:
                        if to == start and after == times:
                            best = length
                        elif to < len(code.text) and (to, after) not in done:
                            following.add((to, after))
            done |= following
            front = following
    return best


def kernels_of(sass):
    """Returns {kernel: lines of its machine code}."""
    lines, name = {}, None
    for line in sass.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section:
            name = section.group(1)
            lines[name] = []
        elif re.match(r"\s*\.section\s", line):
            name = None
        elif name:
            lines[name].append(line)
    return lines


def count(ptxas, disassembler, modules):
    for module in modules:
        for architecture in GPUS:
            with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
                subprocess.run([ptxas, f"-arch=sm_{architecture}", module, "-o", cubin.name], check=True)
                sass = subprocess.run([disassembler, "-c", cubin.name], check=True, capture_output=True, text=True).stdout
            for kernel, lines in kernels_of(sass).items():
                if kernel not in CASES:
                    continue
                code = Code(lines)
                for case, moved, alternatives in CASES[kernel]:
                    found = [n for n in (shortest(code, a) for a in alternatives) if n]
                    print(kernel, case.replace(" ", "_"), architecture, min(found) if found else "-", moved, flush=True)


def read(path):
    """Returns {(kernel, case): {architecture: instructions per 16 bytes}}, and the first line if that is a comment."""
    counts, comment = {}, ""
    for line in open(path):
        if line.startswith("#"):
            comment = line[1:].strip()
            continue
        kernel, case, architecture, length, moved = line.split()
        per16 = None if length == "-" else int(length) * 16 / int(moved)
        counts.setdefault((kernel, case.replace("_", " ")), {})[int(architecture)] = per16
    return counts, comment


def share(architecture, per16):
    """The share of the memory's bandwidth that the schedulers can ask for."""
    _, multiprocessors, ghz, bandwidth = GPUS[architecture]
    return min(1, multiprocessors * ghz * ISSUE * 16 / per16 / bandwidth)


def table(before, after):
    old, comment = read(before)
    new, _ = read(after)
    heads = " | ".join(f"sm_{a}" for a in GPUS)
    rows = [f"| kernel | case | {heads} |", "| --- | --- |" + " ---: |" * len(GPUS)]
    shares = [
        "| kernel | case | " + " | ".join(name for name, *_ in GPUS.values()) + " |",
        "| --- | --- |" + " ---: |" * len(GPUS),
    ]

    def both(show, first, second):
        if first is None or second is None:
            return show(second) if second is not None else "?"
        return show(second) if show(first) == show(second) else f"{show(first)} → {show(second)}"

    for (kernel, case), counts in sorted(new.items()):
        was = old.get((kernel, case), {})
        cells = [both(lambda n: f"{n:.0f}", was.get(a), counts[a]) for a in GPUS]
        rows.append(f"| {kernel} | {case} | " + " | ".join(cells) + " |")
        cells = [both(lambda n, a=a: f"{share(a, n):.0%}", was.get(a), counts[a]) for a in GPUS]
        shares.append(f"| {kernel} | {case} | " + " | ".join(cells) + " |")
    gpus = [
        f"| {name} | sm_{a} | {n} | {ghz} | {gbs} | {n * ghz * ISSUE * 16 / gbs:.0f} | {SOURCES[a]} |"
        for a, (name, n, ghz, gbs) in GPUS.items()
    ]
    print(PAGE.format(comment=comment, rows="\n".join(rows), shares="\n".join(shares), gpus="\n".join(gpus)))


PAGE = """## Instructions per 16 bytes

The table has the SASS instructions of each kernel's hot loop, per thread and per 16 bytes that the kernel reads and writes.
`tools/sass.py` counts along the shortest path through the loop that does the work of the case, with all operands aligned.
ptxas puts NOPs behind float64 instructions for sm_120; the NOPs count, too. No GPU has run these kernels for this page.
`tools/kernels.sh --counts` prints the counts. The script needs nvdisasm, for example of the package `nvidia-cuda-nvdisasm` on PyPI:
`NVDISASM=PATH tools/kernels.sh --counts`.

The number before an arrow is that of {comment}. To count again, copy `tools/kernels.sh` and `tools/sass.py` into a checkout
of that commit and run the same command. `tools/sass-before.txt` has its output.

{rows}

## Estimated share of the memory's bandwidth

The schedulers of a multiprocessor issue at most 4 instructions per cycle, each for 32 threads (CUDA C++ Programming Guide, "Compute
Capabilities"). The table has the share of the memory's bandwidth that a kernel could use if only the memory and this rate limited it.
The estimate is an upper bound. It leaves out latency, atomic operations in shared memory, and the lower rate of some instructions:
conversions, square roots, float64.

{shares}

The limit of a GPU is multiprocessors × GHz × 4 × 32 × 16 bytes / GB/s. If a kernel has at most this number of instructions per 16 bytes,
its estimate is 100 %. The numbers of the GPUs come from the public pages in the last column, not from a measurement.

| GPU | architecture | multiprocessors | boost clock, GHz | memory, GB/s | limit, instructions | pages |
| --- | --- | ---: | ---: | ---: | ---: | --- |
{gpus}"""


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--ptxas")
    options.add_argument("--disassembler")
    options.add_argument("--table", metavar="BEFORE")
    options.add_argument("files", nargs="+")
    given = options.parse_args()
    if given.table:
        table(given.table, given.files[0])
    else:
        count(given.ptxas, given.disassembler, given.files)


if __name__ == "__main__":
    main()
