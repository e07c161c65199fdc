# The one build file; `make` alone prints the targets. Everything is built under build/, in one folder per compiler and
# mode. Set CC, CFLAGS, LDFLAGS or CUDA_HOME as you like.

CFLAGS ?= -O2 -g
WARN   := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Werror
MODE   ?=
# Compiles the unit tests, each of which has the whole implementation in it: gcc takes three times as long as clang.
UNIT_CC := $(or $(if $(MODE),,$(UNIT_CC)),$(CC))
# Without the optimiser compiling for asan takes a fifth of the time and running a third more; for tsan -O1 is worth its time.
MODE_asan := -O0 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
MODE_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer
MODE_quick := -O0
# Seconds of fuzzing are not worth an optimised build; an hour is.
FUZZ_WITH := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
MODE_fuzz := -O0 $(FUZZ_WITH)
MODE_fuzz-all := -O1 $(FUZZ_WITH)
# Counters are in a file that is mapped, so that processes that are killed count, too.
MODE_coverage := -O0 -g0 -fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation
# Another C library, and another processor, which is emulated and slow.
MODE_musl    := -O1
MODE_aarch64 := -O1 -DHARNESS_EMULATED
# What is no part of devstream, or has another copy of it in: most of a build's time would go into optimising that.
QUICK  := -O0
B      := build/$(notdir $(firstword $(CC)))$(if $(filter-out musl aarch64,$(MODE)),-$(MODE))
# -MMD: a header that changes rebuilds what includes it. The flags file does the same for the flags.
# Tests are built from src/, so that debuggers and sanitizers name the lines of the rooms. COMPILE_USER builds what users build, from
# the headers in this folder.
COMPILE_WITH = $(CC) $(CPPFLAGS) $(CFLAGS) $(MODE_$(MODE)) $(WARN) $(1) -MMD -MP -MF $@.d -MT $@
COMPILE      = $(call COMPILE_WITH,-Isrc)
COMPILE_USER = $(call COMPILE_WITH,-I.)
COMPILE_TEST = $(COMPILE) $(QUICK) -std=gnu11 -Itests/support $(CMOCKA:%=-I%/include)
LINK     = $(CC) $(CFLAGS) $(MODE_$(MODE)) $(LDFLAGS)
JOBS   := $(shell nproc 2>/dev/null || echo 2)
SUBMAKE = +@$(MAKE) --no-print-directory

# CUDA: CUDA_HOME, else where nvcc is, else the usual place; empty when there is none.
NVCC_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null)))
CUDA_HOME ?= $(firstword $(foreach d,$(NVCC_HOME) /usr/local/cuda,$(if $(wildcard $(d)/include/cuda_runtime_api.h),$(d))))
export CC CUDA_HOME

CONFORMANCE := $(patsubst %.c,$(B)/%.o,$(wildcard tests/conformance/*.c) tests/support/harness.c)
LOG         := $(B)/executed
# Where the system has no cmocka for the compiler, one is made.
CMOCKA      := $(if $(filter musl aarch64,$(MODE)),$(B)/cmocka)
# Through the CUDA driver: with the stand-in for cudart as objects, with cudart as a shared library (the stand-in's or NVIDIA's),
# and with the static one.
ifneq ($(CUDA_HOME),)
CUDA_FLAGS  := -DDEVSTREAM_CUDA -I$(CUDA_HOME)/include
ifneq ($(wildcard $(CUDA_HOME)/lib64/libcudart_static.a),)
EXAMPLE_FLAGS := $(CUDA_FLAGS)
EXAMPLE_LIBS  := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif
STANDIN     := $(patsubst tests/support/standin/%.c,$(B)/standin/%.o,$(wildcard tests/support/standin/*.c))
# The stand-in as a library has the name of the toolkit's: libcudart.so.13, .12, .11.0.
CUDART      := libcudart.so.$(shell sed -n 's/^.define CUDART_VERSION *\([0-9]*\)[0-9]\{3\}$$/\1/p' $(CUDA_HOME)/include/cuda_runtime_api.h | sed 's/^11$$/11.0/')
NCCL        := $(patsubst tests/support/nccl/%.c,$(B)/nccl/%.o,$(wildcard tests/support/nccl/*.c))
FAULT       := $(patsubst tests/fault/%.c,$(B)/fault/%,$(wildcard tests/fault/*.c))
ON_CUDA     := $(B)/conformance-standin $(B)/conformance-shared $(B)/conformance-static $(B)/lib/$(CUDART)
else ifeq ($(filter musl aarch64,$(MODE)),)
# The interpreter of PTX needs none of CUDA's headers.
STANDIN     := $(B)/standin/ptx.o
endif
# Tests of the stand-in, of what cudart says and of NVTX need the toolkit. On another C library or processor it is threads, processes and
# memory that may differ.
# Tests of the check layer: the programs of a corpus, and random programs.
CHECKS      := $(patsubst tests/check/%.c,$(B)/unit/%,$(wildcard tests/check/test_*.c))
UNIT_ALL    := $(patsubst tests/unit/%.c,$(B)/unit/%,$(wildcard tests/unit/*.c)) $(CHECKS)
UNIT        := $(if $(CUDA_HOME),$(UNIT_ALL),$(filter-out $(B)/unit/test_standin% %/test_topology_here %/test_capture_release %/test_cuda_failed %/test_cuda_refused,$(UNIT_ALL)))
ifeq ($(and $(CUDA_HOME),$(wildcard $(CUDA_HOME)/include/nvtx3/nvToolsExt.h)),)
UNIT        := $(filter-out %/test_nvtx,$(UNIT))
endif
ifeq ($(and $(CUDA_HOME),$(wildcard $(CUDA_HOME)/include/cupti_activity.h)),)
UNIT        := $(filter-out %/test_trace_cupti,$(UNIT))
endif
# The compression of traces needs zlib.
ifeq ($(shell echo '\#include <zlib.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo there),)
UNIT        := $(filter-out %/test_trace_zlib,$(UNIT))
endif
ifneq ($(filter musl aarch64,$(MODE)),)
UNIT        := $(addprefix $(B)/unit/,test_between test_memory_between test_memory_entries test_seam)
endif
UNIT_SKIPPED := $(filter-out $(UNIT),$(UNIT_ALL))
ifneq ($(SHARE),)
UNIT        := $(shell tests/turn.sh $(UNIT))
endif
# Each unit test is run by a target of its own, so make -j runs several at once.
UNIT_RUNS   := $(UNIT:$(B)/unit/%=run-%)

# Examples that check themselves or run under the check layer: each one is compiled once and linked with both drivers.
ifeq ($(MODE),)
RUN_NAMES   := jacobi matmul pipeline demo graph graph_while train train_ranks ring race hello devices memory topology
RUNS        := $(B)/run/expect $(RUN_NAMES:%=$(B)/run/cpu/%) $(if $(CUDA_HOME),$(RUN_NAMES:%=$(B)/run/standin/%))
endif

FUZZ_API    := $(patsubst %.c,$(B)/%.o,$(wildcard tests/fuzz/api*.c))
# Texts of PTX are read before any driver, so one driver will do.
FUZZ_PROGRAMS := build/clang-fuzz/fuzz-api$(if $(filter cuda,$(DS_TEST_DRIVER)),-standin, build/clang-fuzz/fuzz-ptx)

HEADERS     := devstream.h devstream_alloc.h devstream_comm.h devstream_rng.h devstream_kernel.h devstream_check.h devstream_trace.h \
               devstream_ranks.h \
               devstream.hpp
# Versions of a series can stand for each other; before 1.0 a minor version is a series.
VERSION     := $(shell sed -n 's/^.define DEVSTREAM_VERSION_[A-Z]* //p' devstream.h | paste -sd .)
SERIES      := $(if $(filter 0.%,$(VERSION)),$(basename $(VERSION)),$(firstword $(subst ., ,$(VERSION))))
LIBRARY     := $(B)/library$(if $(EXAMPLE_FLAGS),-cuda)
# The folders and commands of the GNU conventions; PREFIX, INCLUDEDIR and LIBDIR are older names of three of them.
PREFIX      ?= /usr/local
prefix       = $(PREFIX)
exec_prefix  = $(prefix)
bindir       = $(exec_prefix)/bin
includedir   = $(or $(INCLUDEDIR),$(prefix)/include)
libdir       = $(or $(LIBDIR),$(exec_prefix)/lib)
datarootdir  = $(prefix)/share
datadir      = $(datarootdir)
docdir       = $(datarootdir)/doc/devstream
mandir       = $(datarootdir)/man
INSTALL     ?= install
INSTALL_PROGRAM ?= $(INSTALL)
INSTALL_DATA    ?= $(INSTALL) -m 644
INSTALL_SETS = $(foreach name,prefix bindir includedir libdir datadir docdir mandir DESTDIR INSTALL_PROGRAM INSTALL_DATA,$(name)='$($(name))') \
    VERSION=$(VERSION) SERIES=$(SERIES) STANDIN='$(CUDA_HOME:%=build/standin/lib/$(CUDART))' HEADERS='$(HEADERS)' \
    CUDART='$(if $(EXAMPLE_FLAGS),$(CUDA_HOME)/lib64/libcudart_static.a)'

PLUGINS     := $(B)/plugin.so $(B)/nvml.so $(B)/nvml-old.so
TEST_ENV    := DEVSTREAM_CPU_DEVICES=2 DS_TEST_PLUGIN=$(abspath $(B)/plugin.so)
# The suite whole, or with SHARE=N an N-th of its groups. What depends on the number of devices or on links: then the random programs stand for it.
# Numbers of devices for the collectives, besides 2.
COUNTS      ?= 1 3 4 8
suite        = $(if $(SHARE),tests/groups.sh $(1) $(RUN),$(RUN) $(1))
collectives  = $(if $(SHARE),env DS_TEST_GROUP=comm_random $(RUN) $(1),$(RUN) $(1) comm)

.PHONY: help demo train examples run-examples check coverage coverage-tests conformance conformance-cuda conformance-linked linked-shared linked-static linked-dlopen unit unit-logs $(UNIT_RUNS) unit-objects fault check-races check-layer trace-page ranks fuzz fuzz-ipc fuzz-ptx fuzz-readers fuzz-all defects kernels check-gpu headers format format-check quick nightly check-source layers features build-tests compile-matrix pages asan tsan model bench docs \
        lint library standin check-nccl-header install uninstall check-install check-musl check-aarch64 conformance-groups newcomer install-deps cmocka clean force check-compilers check-macos check-windows
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@echo "targets:"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  \1	/p' Makefile | expand -t 20

demo: ## build the demo and run it; FILE=... reads that file; then train
	$(SUBMAKE) -j$(JOBS) $(B)/examples/demo $(B)/examples/train
	@$(B)/examples/demo $(if $(FILE),'$(FILE)')
	@echo && $(B)/examples/train

train: $(B)/examples/train ## train a network on pictures of digits, on one device and on four
	@$(B)/examples/train

examples: $(patsubst %.c,$(B)/%,$(wildcard examples/*.c)) ## build the programs of examples/
	@echo "built in $(B)/examples:" $(notdir $^)

check: cmocka ## all tests with the default compiler
	$(SUBMAKE) -j$(JOBS) build-tests
	$(SUBMAKE) -j$(JOBS) --output-sync=target conformance conformance-cuda unit fault run-examples
	$(SUBMAKE) features
	$(SUBMAKE) headers
	@JOBS=$(JOBS) tests/compile/run.sh --fast

coverage-tests: $(B)/conformance $(PLUGINS) $(UNIT) $(B)/ranks/collectives $(if $(CUDA_HOME),$(B)/conformance-standin $(FAULT))
coverage: cmocka ## lines, branches and functions of the headers that the suites of both drivers run (clang); writes docs/coverage.md; takes half an hour
	$(SUBMAKE) MODE=coverage CC=clang -j$(JOBS) coverage-tests
	@tests/coverage.sh build/clang-coverage

run-examples: $(RUNS) ## run the examples that check themselves on both drivers, which must have the same results, and under the check layer
	@tests/examples.sh $(B)/run

quick: cmocka ## build without the optimiser and test the rooms that differ from the last commit; ROOM=alloc/arena: that one
	+@MAKE='$(MAKE)' tests/quick.sh $(ROOM)

nightly: ## the speed beside the last tag's, then the gate with all parts of the suites that commits take turns with; takes hours
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null) || { echo "skip  compare: no tag to compare with"; exit 0; }; bench/compare.sh "$$tag" HEAD
	@ALL=1 .ci/run

build-tests: $(B)/conformance $(PLUGINS) $(UNIT) $(FAULT) $(ON_CUDA) $(RUNS)

conformance: cmocka $(B)/conformance $(PLUGINS) ## only the conformance suite
	@rm -f $(LOG)-cpu.log
	@$(TEST_ENV) DS_TEST_LOG=$(LOG)-cpu.log $(call suite,$(B)/conformance)
	@for n in $(if $(MODE),3,$(COUNTS)); do echo "== collectives, $$n devices"; \
	    $(TEST_ENV) DEVSTREAM_CPU_DEVICES=$$n DS_RANDOM_SEEDS=200 DS_RANDOM_FIRST=$${n}0000 $(call collectives,$(B)/conformance) || exit 1; done

conformance-cuda: cmocka $(PLUGINS) $(ON_CUDA) ## the conformance suite through the CUDA driver and the stand-in for cudart
	@rm -f $(LOG)-cuda.log
ifeq ($(CUDA_HOME),)
	@echo "skip  the CUDA driver: no toolkit found (CUDA_HOME)"
else
	@DS_TEST_DRIVER=cuda $(TEST_ENV) DS_TEST_LOG=$(LOG)-cuda.log $(call suite,$(B)/conformance-standin)
	@for set in $(if $(MODE),,DEVICES=1) PEERS=none; do echo "== collectives, $$set"; \
	    env DS_TEST_DRIVER=cuda $(TEST_ENV) STANDIN_$$set $(call collectives,$(B)/conformance-standin) || exit 1; done
endif

# As a user has it: linked with libcudart, whose place the stand-in takes at run time; the binary that starts without a driver; and one
# that finds the stand-in at run time.
conformance-linked: linked-shared linked-static linked-dlopen ## the same, with a shared cudart; without a driver, with the static one; and with a cudart that is loaded
linked-shared linked-static: cmocka $(PLUGINS) $(ON_CUDA)
linked-dlopen: cmocka $(PLUGINS) $(if $(CUDA_HOME),$(B)/conformance-dlopen $(B)/lib/$(CUDART))
ifneq ($(CUDA_HOME),)
linked-shared:
	@echo "== shared library, stand-in, of whose 4 devices the last 2 must get no context" && \
	    DS_TEST_DRIVER=cuda DS_TEST_UNUSED_DEVICES=2 $(TEST_ENV) LD_LIBRARY_PATH=$(B)/lib $(call suite,$(B)/conformance-shared)
linked-static:
	@echo "== cudart_static, no driver" && DS_TEST_DRIVER=cpu $(TEST_ENV) $(call suite,$(B)/conformance-static)
linked-dlopen:
	@echo "== cudart loaded at run time, stand-in" && DS_TEST_DRIVER=cuda $(TEST_ENV) DEVSTREAM_CUDART=$(abspath $(B)/lib) $(call suite,$(B)/conformance-dlopen)
endif

unit: $(UNIT_RUNS) ## only the unit tests
ifeq ($(filter musl aarch64,$(MODE)),)
	@for test in $(notdir $(UNIT_SKIPPED)); do echo "skip  $$test: no toolkit found (CUDA_HOME), it has no NVTX or CUPTI, or zlib.h is missing"; done
endif

$(UNIT_RUNS): run-%: cmocka $(B)/unit/% | unit-logs
	@$(RUN) $(B)/unit/$* >$(LOG)-unit-$*.out 2>&1; status=$$?; cat $(LOG)-unit-$*.out; [ $$status -eq 0 ] || exit 1; \
	    sed -n 's/^\[       OK \] /unit /p' $(LOG)-unit-$*.out >$(LOG)-unit-$*.log
unit-logs:
	@rm -f $(LOG)-unit*.log

fault: cmocka $(FAULT) ## which calls the CUDA driver makes, and a fault at each of them
	@for test in $(FAULT); do $(RUN) $$test || exit 1; done

# DS_CHECK_RUNS=1000: so many runs of the programs with threads, whose order differs from run to run.
# DS_CHECK_PROGRAMS=100000: so many random programs of each kind.
check-races: cmocka $(CHECKS) ## the tests of the check layer: races that it must report, and programs about which it must be silent
	@for test in $(CHECKS); do $(RUN) $$test || exit 1; done

# exit=3: a report ends the process, and so fails the run, at the next ds_shutdown; a test that has a process of its own fails. The suite
# fails, too, if the layer is not on.
check-layer: export DEVSTREAM_CHECK := exit=3
check-layer: cmocka ## the conformance suite under the check layer on both drivers, which must report nothing; SHARE=13: a thirteenth of it
	$(SUBMAKE) -j$(JOBS) $(B)/conformance $(PLUGINS) $(if $(CUDA_HOME),$(B)/conformance-standin)
	@$(TEST_ENV) $(call suite,$(B)/conformance)
ifeq ($(CUDA_HOME),)
	@echo "skip  the CUDA driver under the check layer: no toolkit found (CUDA_HOME)"
else
	@TURN=6 DS_TEST_DRIVER=cuda $(TEST_ENV) $(call suite,$(B)/conformance-standin) # other groups than on the CPU driver
endif

# TRACE_OPERATIONS=10000: so many operations in the largest trace. `tests/trace/page.py --measure` prints the time until they are drawn.
TRACE_RUNS := $(foreach driver,cpu $(if $(CUDA_HOME),standin),$(addprefix $(B)/run/$(driver)/,pipeline demo graph))
trace-page: ## test the page of a trace in a headless browser (chromium), and traces of examples in Perfetto; PART=keys: the tests of the page with this in their name
	$(SUBMAKE) -j$(JOBS) $(TRACE_RUNS)
	@tests/trace/run.sh $(B)/run $(PART)

ranks: $(B)/ranks/collectives $(addprefix $(B)/examples/,train train_ranks ring) \
    $(if $(CUDA_HOME),$(B)/unit/test_ranks_nccl $(B)/lib/$(CUDART) $(B)/lib/libnccl.so.2 $(addprefix $(B)/run/standin/,train_ranks ring)) ## process groups with MPI: installs MPICH from PyPI under build/ and runs 2, 3, 4 and 8 ranks; PART=hangs: only that part; SHARE=9: one part
	@STANDIN=$(CUDA_HOME) tests/ranks/parts.sh $(B) $(PART)

unit-objects: cmocka ## compile the unit tests with CC, also where UNIT_CC is another compiler; SHARE=9: a part
	$(SUBMAKE) -j$(JOBS) $(UNIT:$(B)/unit/%=$(B)/unit-objects/%.o)
	@echo "unit objects: $(words $(UNIT)) passed, 0 failed"

defects: cmocka ## seeded defects: the tests must catch each
	$(SUBMAKE) -j$(JOBS) build-tests
	@B=$(B) JOBS=$$(($(JOBS) + 1)) tests/defects/run.sh # some sleep until their deadline

kernels: ## compile kernels/ and kernel files to PTX and write the files that hold it (clang 14); assemble it (ptxas)
	@tools/kernels.sh && tools/kernels.sh --assemble

check-gpu: cmocka $(PLUGINS) $(B)/conformance-static $(B)/bench-cuda ## probes, the same tests and benchmarks on a real GPU; PART=risks: only these; writes docs/gpu/
	@tests/gpu/run.sh $(B)/conformance-static $(B)/bench-cuda $(PART)

headers: ## write the headers and single/devstream.h from src/ (in a git checkout)
	@tools/headers.sh

format: ## format everything that is written by hand (clang-format 14)
	@tools/format.sh
format-check: ## fail if something is not formatted
	@tools/format.sh --check
check-source: format-check ## check format, generated files and the form of the rooms; test the tools
	@tools/headers.sh --check
	@tools/badges.sh --check
	@tests/quick.sh --list >/dev/null
	@tools/rooms.sh
	@tools/layers.sh
	@tests/tools/run.sh
	@tests/gpu/answers_test.sh
	@tests/fuzz/calls.sh
	@tests/abi.sh

layers: ## check that no room uses a layer above its own, and that each layer is complete
	@tools/layers.sh

features: ## compare docs/features.md with its names, the headers and the tests that were executed
	@cat $(LOG)-*.log >$(LOG).log && tools/features.sh docs/features.md $(LOG).log docs/reference-names.txt docs/migration.md $(HEADERS)

check-install: headers ## install into a folder of its own and build programs against that (pkg-config, CMake)
	@tests/install/run.sh

newcomer: headers ## the first steps that README describes, in empty folders
	@tests/newcomer.sh

check-windows: headers ## Windows: build with mingw-w64 and run under Wine; PARTS="library build ...", see tests/ports/windows.sh
	@tests/ports/windows.sh $(PARTS)

compile-matrix: headers ## every way to include the headers, and the single file
	@export JOBS=$(JOBS); tests/compile/run.sh; two=$$?; tests/compile/run.sh single && [ $$two -eq 0 ]

pages: headers ## what README and the guide pages show: compile and run it, look up what it names
	@ONLY='pages\|\.md:' tests/compile/run.sh

# Where addresses are too random for ThreadSanitizer it dies at its start, so randomisation is off if that is allowed.
tsan: export TSAN_OPTIONS ?= second_deadlock_stack=1
tsan: export DS_CHECK_RUNS ?= 2
tsan: export RUN = $(shell setarch -R true 2>/dev/null && echo setarch -R)
asan tsan: export DS_TEST_TIMEOUT ?= 900
asan: export UBSAN_OPTIONS ?= print_stacktrace=1
asan tsan: cmocka
	$(SUBMAKE) MODE=$@ -j$(JOBS) build-tests
	$(SUBMAKE) MODE=$@ -j$(JOBS) --output-sync=target conformance conformance-cuda unit fault
asan: ## the tests with the address and undefined-behaviour sanitizers; SHARE=2: half of them
tsan: ## the tests with the thread sanitizer; SHARE=2: half of them

# A report leaves its input in build/; `build/clang-fuzz/fuzz-api FILE` repeats it (tests/README.md).
fuzz: ## fuzz the public functions for FUZZ_SECONDS (60) on the driver DS_TEST_DRIVER (cpu, or cuda on the stand-in); cpu: then PTX texts as long
	@tests/fuzz/possible.sh || exit 0; \
	    $(MAKE) --no-print-directory MODE=fuzz CC=clang -j$(JOBS) $(FUZZ_PROGRAMS) && \
	    for program in $(FUZZ_PROGRAMS); do tests/fuzz/run.sh $$program || exit 1; done

# A report leaves its input in build/; the program repeats it when it gets that file.
FUZZ_IPC := build/clang-fuzz/fuzz-ipc$(if $(filter cuda,$(DS_TEST_DRIVER)),-standin)
fuzz-ipc: ## fuzz imports of other processes' events and memory for FUZZ_SECONDS (60); DS_TEST_DRIVER=cuda: on the stand-in
	$(SUBMAKE) MODE=fuzz CC=clang -j$(JOBS) $(FUZZ_IPC)
	@$(FUZZ_IPC) -max_total_time=$(or $(FUZZ_SECONDS),60) -max_len=512 -timeout=60 -print_final_stats=1 -artifact_prefix=build/fuzz-ipc-

fuzz-ptx: ## fuzz the texts of images that ds_kernel_create reads for FUZZ_SECONDS (60)
	@tests/fuzz/possible.sh || exit 0; \
	    $(MAKE) --no-print-directory MODE=fuzz CC=clang -j$(JOBS) build/clang-fuzz/fuzz-ptx && tests/fuzz/run.sh build/clang-fuzz/fuzz-ptx

fuzz-readers: ## fuzz each reader of texts and bytes from outside for FUZZ_SECONDS (5); PART=topology: only that one
	@tests/fuzz/possible.sh || exit 0; \
	    $(MAKE) --no-print-directory MODE=fuzz CC=clang -j$(JOBS) build/clang-fuzz/fuzz-readers build/clang-fuzz/fuzz-ipc build/clang-fuzz/fuzz-ptx && \
	    tests/fuzz/readers.sh build/clang-fuzz $(PART)

FUZZ_ALL := $(addprefix build/clang-fuzz-all/fuzz-,readers ipc ptx api $(if $(CUDA_HOME),ipc-standin api-standin))
fuzz-all: export FUZZ_SECONDS ?= 3600
fuzz-all: export FUZZ_JOBS ?= $(JOBS)
fuzz-all: ## fuzz each target for an hour, as before a release; FUZZ_JOBS: targets at a time; PART="api ipc": only these; FUZZ_SECONDS
	@tests/fuzz/possible.sh || exit 0; \
	    $(MAKE) --no-print-directory MODE=$@ CC=clang -j$(JOBS) $(FUZZ_ALL) && tests/fuzz/readers.sh build/clang-fuzz-all $(or $(PART),all)

# Devices for frameworks, in examples/backend; the run.sh of each has its variables.
.PHONY: backend-paddle backend-torch
backend-paddle: ## build the Paddle device of examples/backend/paddle and test it with Paddle's wheel (pip, 200 MB)
	@examples/backend/paddle/run.sh

backend-torch: ## build the PyTorch backend of examples/backend/torch and test it with torch's wheel (pip, 1 GB and more)
	+@MAKE='$(MAKE)' examples/backend/torch/run.sh

# The conformance suite on the CPU driver, with a few seeds of the random programs, and a few unit tests.
# qemu 7.2 on x86-64 lets a load overtake the store before it, which aarch64 forbids when both are sequentially consistent (stlr, ldar):
# Dekker's test goes wrong every fifth time. With one processor there is nothing to overtake.
check-musl: ## the conformance suite and some unit tests with musl; SHARE=3: a third of them
check-aarch64: ## the same on an emulated aarch64
check-musl: CC_musl := musl-gcc
check-aarch64: CC_aarch64 := aarch64-linux-gnu-gcc
check-aarch64: export QEMU_LD_PREFIX ?= /usr/aarch64-linux-gnu
check-aarch64: export DS_TEST_RUNNER := qemu-aarch64
check-aarch64: RUN = taskset -c $(shell taskset -cp $$$$ | sed 's/.*[^0-9]//') qemu-aarch64
# qemu keeps a table of every page that was ever reserved, and address space is reserved in proportion to a device's memory.
check-aarch64: export DEVSTREAM_CPU_MEMORY ?= 2147483648
check-musl check-aarch64: export DS_RANDOM_SEEDS ?= 10
check-musl check-aarch64: export DS_TEST_TIMEOUT ?= 300
check-musl check-aarch64: check-%:
	@for tool in $(CC_$*) $(DS_TEST_RUNNER); do command -v $$tool >/dev/null || tools/install-deps.sh matrix || exit 1; done
	$(SUBMAKE) MODE=$* CC=$(CC_$*) CUDA_HOME= cmocka
	$(SUBMAKE) MODE=$* CC=$(CC_$*) CUDA_HOME= -j$(JOBS) build-tests
	$(SUBMAKE) MODE=$* CC=$(CC_$*) CUDA_HOME= RUN='$(RUN)' unit conformance-groups
conformance-groups:
	@$(TEST_ENV) tests/groups.sh $(B)/conformance $(RUN)

check-compilers: headers ## compile and run with other compilers (clang 13 to 22, gcc 10 to 12, zig cc); see that unsuited ones are refused; PART=zig: that part
	@tests/ports/compilers.sh $(PART)

check-macos: headers ## compile and link everything for macOS with zig, which runs none of it; PART=library: that part
	@tests/ports/macos.sh $(PART)

model: ## check the model of the lock-free section (spin)
	@if [ -x tests/model/run.sh ]; then tests/model/run.sh; else echo "model: tests/model/run.sh is not there"; fi

bench: headers ## measure against the limits and peers, write docs/bench.md
	@bench/run.sh

docs: headers $(B)/devstream.o ## pages of the reference in build/docs/html; a warning is an error
	@command -v doxygen >/dev/null || tools/install-deps.sh docs
	@mkdir -p build/docs
	@cd docs && doxygen -l ../build/docs/default.xml && awk -f layout.awk ../build/docs/default.xml >../build/docs/layout.xml && \
	    DEVSTREAM_VERSION=$(VERSION) doxygen Doxyfile
	@! command -v python3 >/dev/null || docs/pictures.py $(B)/devstream.o build/docs/html
	@docs/search.sh build/docs/html/search && grep -q "'broadcast_5finto_" build/docs/html/search/functions_*.js
	@cat build/docs/html/*_8h.html >build/docs/headers.html && for name in $$(sed -n '/(ds_[a-z0-9_]*)(/!s/^DSDEF [^(]*[ *]\(ds_[a-z0-9_]*\)(.*/\1/p' $(HEADERS)); do \
	    grep -q "</span>$$name()" build/docs/headers.html || { echo "docs: $$name is not in the reference"; exit 1; }; done
	@echo "docs: build/docs/html/index.html"

lint: ## what cppcheck and clang-tidy say; not part of check
	@if command -v cppcheck >/dev/null; then cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr \
	    --suppress=varFuncNullUB -D__linux__ -D__x86_64__ -D__STDC_VERSION__=201112L --error-exitcode=1 devstream.c; \
	else echo "lint: cppcheck is not installed"; fi
	@if command -v clang-tidy >/dev/null; then clang-tidy --quiet --header-filter='devstream.*' --checks=$(TIDY) \
	    devstream.c -- -std=c11; else echo "lint: clang-tidy is not installed"; fi
# Without what is our style: similar parameters side by side, names with two underscores, memcpy, macros that take types.
NO_TIDY := easily-swappable-parameters reserved-identifier macro-parentheses
TIDY    := '-*,bugprone-*$(NO_TIDY:%=,-bugprone-%),clang-analyzer-*,-clang-analyzer-security.insecureAPI.*,-clang-analyzer-optin.*'
null    :=
TIDY    := $(subst $(null) ,,$(TIDY))

# For programs that link instead of include. The libraries have the CUDA driver where the toolkit is (CUDA_HOME= leaves it out);
# its static cudart is inside of libdevstream.so and invisible there.
library: $(LIBRARY)/libdevstream.a $(LIBRARY)/libdevstream.so.$(VERSION) ## build libdevstream.a and libdevstream.so

# The stand-in as programs use it (tools/devstream-standin): optimised, and in a folder that no compiler or mode shares.
standin: ## build the stand-ins for cudart and NCCL; tools/devstream-standin PROGRAM runs a program on them
ifeq ($(CUDA_HOME),)
	@echo "standin: CUDA's headers were not found; set CUDA_HOME" >&2; exit 1
else
	$(SUBMAKE) B=build/standin MODE= WARN='$(filter-out -Werror,$(WARN))' -j$(JOBS) build/standin/lib/$(CUDART) build/standin/lib/libnccl.so.2
endif

check-nccl-header: ## compare the stand-in for NCCL with NVIDIA's header; NCCL_HEADER=.../nccl.h, several with spaces
	@tests/support/nccl/abi/abi.sh $(NCCL_HEADER)

install: library $(if $(CUDA_HOME),standin) ## install headers, libraries, tools, pages, pkg-config and CMake files; prefix=/usr/local, libdir=, includedir=, docdir=, mandir=, DESTDIR=
	@$(INSTALL_SETS) tools/install.sh install $(LIBRARY)
uninstall: ## remove what install has put there
	@$(INSTALL_SETS) tools/install.sh uninstall $(LIBRARY)

.PHONY: dist
dist: docs ## write the archive of the release, the pages and SHA256SUMS to build/dist
	@tools/dist.sh

install-deps: ## install what all targets need (apt, dnf, pacman, apk, zypper)
	@tools/install-deps.sh check docs matrix bench model kernels source page compilers

clean: ## remove build/
	rm -rf build

# ---- how things are built ----

cmocka:
ifneq ($(CMOCKA),)
	@tools/cmocka.sh $(CMOCKA)
else
	@printf '#include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h cmocka.h | $(CC) -fsyntax-only -x c - 2>/dev/null || \
	    tools/install-deps.sh check
endif

$(B)/flags: force
	@mkdir -p $(B)
	@echo '$(CC) $(UNIT_CC) $(CPPFLAGS) $(CFLAGS) $(MODE_$(MODE)) $(WARN) $(CUDA_FLAGS)' | cmp -s - $@ || echo '$(CC) $(UNIT_CC) $(CPPFLAGS) $(CFLAGS) $(MODE_$(MODE)) $(WARN) $(CUDA_FLAGS)' >$@

$(B)/devstream.o: src/devstream.c $(B)/flags
	$(COMPILE) -std=c11 -c $< -o $@

# An object for each library: hidden symbols in the static one, exported ones in the shared one. What a stranger's compiler warns of
# does not stop him.
$(LIBRARY)/devstream.o $(LIBRARY)/devstream-shared.o: private WARN := $(filter-out -Werror,$(WARN))
$(LIBRARY)/devstream-shared.o: private SHARED := -DDEVSTREAM_SHARED
$(LIBRARY)/devstream.o $(LIBRARY)/devstream-shared.o: devstream.c $(B)/flags | headers
	@mkdir -p $(@D)
	$(COMPILE_USER) -std=c11 -fPIC -fvisibility=hidden $(SHARED) $(EXAMPLE_FLAGS) -c $< -o $@
$(LIBRARY)/libdevstream.a: $(LIBRARY)/devstream.o
	@rm -f $@
	$(AR) rcs $@ $<
$(LIBRARY)/libdevstream.so.$(VERSION): $(LIBRARY)/devstream-shared.o
	$(LINK) -shared -Wl,-soname,libdevstream.so.$(SERIES) -Wl,-z,defs $< -o $@ $(EXAMPLE_LIBS) -pthread -ldl

$(B)/tests/%.o: tests/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) -c $< -o $@

# Kernels at two levels of the optimiser, in both forms.
$(B)/tests/conformance/test_kernel_once_o0.o: private QUICK := -O0 -I$(B)
$(B)/tests/conformance/test_kernel_once_o3.o: private QUICK := -O3 -I$(B)
$(B)/tests/conformance/test_kernel_once_o0.o: $(B)/ptx/o0/once.ptx.h
$(B)/tests/conformance/test_kernel_once_o3.o: $(B)/ptx/o3/once.ptx.h
$(B)/ptx/o%/once.ptx.h: tests/support/kernels/once.kernels.h tests/support/kernels/compile.sh tools/devstream-kernels src/devstream_kernel.h $(wildcard src/api/kernel_*.h)
	@tests/support/kernels/compile.sh -O$* $< $(@D)

$(B)/conformance: $(CONFORMANCE) $(B)/devstream.o
	$(LINK) $^ -o $@ $(CMOCKA:%=-L%/lib) -lcmocka -pthread -ldl -lm

# A shared object with a devstream of its own, which the tests load and unload.
$(B)/plugin.so: tests/support/plugin.c $(B)/flags
	$(COMPILE_TEST) -fPIC -shared $< -o $@ $(LDFLAGS) -pthread

# What stands for NVML, as it is and as it was before processes had instances.
$(B)/nvml.so: tests/support/nvml.c $(B)/flags
	$(COMPILE) -std=gnu11 -fPIC -shared $< -o $@ $(LDFLAGS)
$(B)/nvml-old.so: tests/support/nvml.c $(B)/flags
	$(COMPILE) -std=gnu11 -DOLD -fPIC -shared $< -o $@ $(LDFLAGS)

# What stands for MPI; the other one has the name of an MPI that programs are linked with, and lacks a function.
$(B)/mpi.so: tests/support/mpi.c $(B)/flags
	$(COMPILE) -std=gnu11 -fPIC -shared $< -o $@ $(LDFLAGS) -pthread
$(B)/mpi-lacks.so: tests/support/mpi.c $(B)/flags
	$(COMPILE) -std=gnu11 -DLACKS -fPIC -shared $< -o $@ $(LDFLAGS) -pthread -Wl,-soname,libmpi.so.12
$(B)/unit/test_ranks_mpi: | $(B)/mpi.so $(B)/mpi-lacks.so

# Libraries with the names of cudart's functions, for the search of cudart at run time.
CUDART_FAKES := $(patsubst %,$(B)/cudart-%.so,11 12 13 lacks)
$(B)/cudart-%.so: tests/support/cudart.c $(B)/flags
	$(COMPILE) -std=gnu11 -DMAJOR=$(subst lacks,12 -DLACKS,$*) -fPIC -shared $< -o $@ $(LDFLAGS) \
	    -Wl,-soname,libcudart.so.$(subst 11,11.0,$(subst lacks,12,$*))
$(B)/unit/test_cudart_load: | $(CUDART_FAKES)

# A tool that NVTX loads.
$(B)/nvtx.so: tests/support/nvtx.c $(B)/flags
	$(COMPILE) -std=gnu11 $(CUDA_FLAGS) -fPIC -shared $< -o $@ $(LDFLAGS) -pthread
$(B)/unit/test_nvtx: | $(B)/nvtx.so

# What stands for CUPTI. It looks for the stand-in for cudart in the program.
$(B)/cupti.so: tests/support/cupti.c $(B)/flags
	$(COMPILE) -std=gnu11 $(CUDA_FLAGS) -fPIC -shared $< -o $@ $(LDFLAGS) -pthread -Wl,-soname,libcupti.so.12
$(B)/unit/test_trace_cupti: | $(B)/cupti.so
$(B)/unit/test_trace_cupti: private LIBS := -Wl,--export-dynamic-symbol=standin_watch

$(B)/cuda/devstream.o: src/devstream.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=c11 -DDS__COUNT_LOCKS $(CUDA_FLAGS) -c $< -o $@

# Without CUDA's headers: cudart is found and loaded at run time.
$(B)/dlopen/devstream.o: src/devstream.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=c11 -DDEVSTREAM_CUDA_DLOPEN -c $< -o $@

$(B)/standin/%.o: tests/support/standin/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=gnu11 -fPIC $(CUDA_FLAGS) -c $< -o $@

# The functions that take a stream have a second name each, under which NULL means the thread's own one.
$(B)/standin-ptsz.o: tests/support/standin/names.c $(B)/flags
	$(COMPILE) -std=gnu11 -fPIC $(CUDA_FLAGS) -DCUDA_API_PER_THREAD_DEFAULT_STREAM -c $< -o $@

# The name and the symbol versions of NVIDIA's. It must stay loaded while its threads live.
$(B)/lib/$(CUDART): $(STANDIN) $(B)/standin-ptsz.o tests/support/standin/standin.map
	@mkdir -p $(@D)
	@sed 's/^libcudart\.so\.[0-9.]*/$(CUDART)/' tests/support/standin/standin.map >$(B)/standin.map
	$(LINK) -shared $(filter %.o,$^) -o $@ -Wl,-soname,$(CUDART) -Wl,--version-script=$(B)/standin.map \
	    -Wl,-z,nodelete -pthread -lm
	@touch $(@D)

# The stand-in for NCCL; as it is, and as it was in 2.18.3. It finds the one for cudart in the program, or loads it from beside itself.
$(B)/nccl/%.o: tests/support/nccl/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=gnu11 -fPIC -fvisibility=hidden $(CUDA_FLAGS) -DSTANDIN_CUDART='"$(CUDART)"' -c $< -o $@
$(B)/nccl-old/%.o: tests/support/nccl/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=gnu11 -fPIC -fvisibility=hidden $(CUDA_FLAGS) -DSTANDIN_NCCL_OLD -DSTANDIN_CUDART='"$(CUDART)"' -c $< -o $@
$(B)/lib/libnccl.so.2: $(NCCL)
$(B)/lib-nccl-old/libnccl.so.2: $(NCCL:$(B)/nccl/%=$(B)/nccl-old/%)
$(B)/lib/libnccl.so.2 $(B)/lib-nccl-old/libnccl.so.2:
	@mkdir -p $(@D)
	$(LINK) -shared $^ -o $@ -Wl,-soname,libnccl.so.2 -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' -Wl,-z,nodelete -pthread -ldl -lm
	@touch $(@D)

$(B)/conformance-standin: $(CONFORMANCE) $(B)/cuda/devstream.o $(STANDIN)
	$(LINK) $^ -o $@ -lcmocka -pthread -ldl -lm

$(B)/conformance-shared: $(CONFORMANCE) $(B)/cuda/devstream.o
	$(LINK) $^ -o $@ -lcmocka -L$(CUDA_HOME)/lib64 -lcudart -pthread -ldl -lm

$(B)/conformance-static: $(CONFORMANCE) $(B)/cuda/devstream.o
	$(LINK) $^ -o $@ -lcmocka -L$(CUDA_HOME)/lib64 -lcudart_static -pthread -ldl -lrt -lm

$(B)/conformance-dlopen: $(CONFORMANCE) $(B)/dlopen/devstream.o
	$(LINK) $^ -o $@ -lcmocka -pthread -ldl -lm

$(B)/fuzz-api: $(FUZZ_API) $(B)/devstream.o
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm

$(B)/fuzz-api-standin: $(FUZZ_API) $(B)/cuda/devstream.o $(STANDIN)
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm

$(B)/bench-cuda: bench/cuda.c $(B)/flags
	$(COMPILE_USER) -std=gnu11 -Ibench $(CUDA_FLAGS) $< -o $@ $(LDFLAGS) -L$(CUDA_HOME)/lib64 -lcudart_static -pthread -ldl -lrt -lm

$(B)/bench-standin: bench/cuda.c $(STANDIN) $(B)/flags
	$(COMPILE_USER) -std=gnu11 -Ibench $(CUDA_FLAGS) $< $(STANDIN) -o $@ $(LDFLAGS) -pthread -ldl -lm

$(B)/fuzz-ipc: $(B)/tests/fuzz/ipc.o $(B)/devstream.o
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm
$(B)/fuzz-ptx: $(B)/tests/fuzz/ptx_text.o $(B)/devstream.o
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm
# One of the readers' objects has the library in it.
$(B)/fuzz-readers: $(patsubst %.c,$(B)/%.o,$(wildcard tests/fuzz/readers/*.c))
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm
$(B)/fuzz-ipc-standin: $(B)/tests/fuzz/ipc.o $(B)/cuda/devstream.o $(STANDIN)
	$(LINK) $^ -fsanitize=fuzzer -o $@ -pthread -ldl -lm

$(B)/unit/%: private CC := $(UNIT_CC)
# Tests of the stand-in and of the device code, and of the CUDA driver upon the stand-in.
$(B)/unit/%: tests/unit/%.c $(STANDIN) $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) $< $(filter %.o,$^) -o $@ $(LDFLAGS) $(CMOCKA:%=-L%/lib) -lcmocka -pthread -ldl -lm $(LIBS)

$(B)/unit/test_trace_zlib: private LIBS := -lz

# The stand-in for NCCL is in the program, and it loads the libraries, which find the stand-in for cudart in the program.
$(B)/unit/test_ranks_nccl $(B)/unit/test_ranks_nccl_failures $(B)/unit/test_ranks_nccl_groups $(B)/unit/test_ranks_nccl_memory: $(NCCL)
$(B)/unit/test_ranks_nccl_failures $(B)/unit/test_ranks_nccl_groups: private QUICK := -O0 -DDS__COUNT_LOCKS
$(B)/unit/test_ranks_nccl_failures $(B)/unit/test_ranks_nccl_groups: | $(B)/lib-nccl-old/libnccl.so.2
$(B)/unit/test_ranks_nccl $(B)/unit/test_ranks_nccl_failures $(B)/unit/test_ranks_nccl_groups $(B)/unit/test_ranks_nccl_memory: private LIBS := -Wl,--export-dynamic-symbol=standin_* -Wl,--export-dynamic-symbol=nccl*
$(B)/unit/test_standin_nccl: $(NCCL) | $(B)/lib/libnccl.so.2 $(B)/lib-nccl-old/libnccl.so.2
$(B)/unit/test_standin_nccl: private LIBS := -Wl,--export-dynamic-symbol=standin_get_services

# What they run takes longer than compiling it with the optimiser does.
$(B)/unit/test_plans $(B)/unit/test_plans_calls $(B)/unit/test_plans_followed $(B)/unit/test_rng_kernels: private QUICK := -O1

# What promises its bits, with all that the optimiser and this processor have.
$(B)/unit/test_comm_kernels: $(B)/native/comm_kernels.o
$(B)/unit/test_rng_kernels: $(B)/native/rng_kernels.o
$(B)/native/%.o: tests/unit/native/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) -std=gnu11 -O3 -march=native -c $< -o $@

# Libraries that a test loads call CUDA's functions of the stand-in, which looks for spin locks that are held.
$(B)/ranks/%: private LDFLAGS += -rdynamic
$(B)/ranks/%: private QUICK := -O0 -DDS__COUNT_LOCKS
$(B)/ranks/%: private CC := $(UNIT_CC)
$(B)/ranks/%: tests/ranks/%.c $(STANDIN) $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) $< $(filter %.o,$^) -o $@ $(LDFLAGS) -pthread -ldl -lm

$(B)/unit-objects/%.o: tests/unit/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) -c $< -o $@
$(B)/unit-objects/%.o: tests/check/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) -c $< -o $@

$(B)/unit/%: tests/check/%.c $(STANDIN) $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) $< $(filter %.o,$^) -o $@ $(LDFLAGS) $(CMOCKA:%=-L%/lib) -lcmocka -pthread -ldl -lm

$(B)/fault/objects/%.o: tests/fault/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(CUDA_FLAGS) -c $< -o $@

$(B)/fault/%: $(B)/fault/objects/%.o $(B)/cuda/devstream.o $(STANDIN)
	$(LINK) $^ -o $@ -lcmocka -pthread -ldl -lm

$(B)/run/expect: tests/trace/expect.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $< -o $@
$(B)/run/%.o: examples/%.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) $(QUICK) -std=c11 $(LINKED) -c $< -o $@
$(B)/run/cpu/%: $(B)/run/%.o $(B)/devstream.o
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ -pthread -ldl -lm
# The stand-in for NCCL, which they may load, uses that for cudart.
$(B)/run/standin/%: private LDFLAGS += -Wl,--export-dynamic-symbol=standin_*
$(B)/run/standin/%: $(B)/run/%.o $(B)/cuda/devstream.o $(STANDIN)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ -pthread -ldl -lm

# With CUDA compiled in where its toolkit is; they run without a GPU too.
# They link one object, so they do not implement the headers, although their sources do.
LINKED := -DDEVSTREAM_H_IMPLEMENTED $(patsubst %,-DDEVSTREAM_%_H_IMPLEMENTED,ALLOC COMM RNG KERNEL CHECK TRACE RANKS)
$(B)/examples/%: examples/%.c $(LIBRARY)/libdevstream.a
	@mkdir -p $(@D)
	$(COMPILE_USER) -std=c11 $(LINKED) $< $(LIBRARY)/libdevstream.a -o $@ $(LDFLAGS) $(EXAMPLE_LIBS) -pthread -ldl -lm
# These two are the first that anybody builds: each alone, with little optimisation, side by side.
$(B)/examples/demo $(B)/examples/train: private WARN :=
$(B)/examples/demo $(B)/examples/train: $(B)/examples/%: examples/%.c $(B)/flags | headers
	@mkdir -p $(@D)
	$(COMPILE_USER) -std=c11 -O1 -g0 -DDEVSTREAM_STATIC $(EXAMPLE_FLAGS) $< -o $@ $(LDFLAGS) $(EXAMPLE_LIBS) -pthread -ldl -lm

-include $(wildcard $(B)/*.d $(B)/*/*.d $(B)/*/*/*.d $(B)/*/*/*/*.d)
