# Builds what tests/ports/windows.sh runs: make -f tests/ports/windows.mk [COMPILER=clang].
# Everything is below build/windows, and what clang compiles below build/windows-clang.
COMPILER ?= gcc
GCC   := x86_64-w64-mingw32-gcc
ifeq ($(COMPILER),clang)
B     := build/windows-clang
# clang has no runtime for mingw in most packages and takes gcc's
CC    := clang --target=x86_64-w64-mingw32
RUNTIME := -L$(dir $(shell $(GCC) -print-libgcc-file-name))
else
B     := build/windows
CC    := $(GCC)
RUNTIME :=
endif
WARN  := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Werror
DEPS   = -MMD -MP -MF $@.d -MT $@
# The tests call functions of POSIX. Wine keeps a table of reserved pages, as qemu does, so loops and sizes are those for an emulator.
TEST  := -std=gnu11 -O0 -Wall -Wextra -Werror -Wno-format -Wno-format-extra-args -DHARNESS_EMULATED -D_WIN32_WINNT=0x0A00 \
         -Itests/ports/windows -include tests/ports/windows/posix.h -Isrc -Itests/support -I$(B) -I$(B)/cmocka/include
# Library calls and thread-local data of the tests are in the program itself.
LIBS  := $(RUNTIME) -static -pthread
CONFORMANCE := $(patsubst %.c,$(B)/%.o,$(wildcard tests/conformance/*.c) tests/support/harness.c tests/ports/windows/posix.c)
EXAMPLES    := hello devices memory topology demo train graph graph_while jacobi matmul pipeline ring race train_ranks
LINKED      := -DDEVSTREAM_H_IMPLEMENTED $(patsubst %,-DDEVSTREAM_%_H_IMPLEMENTED,ALLOC COMM RNG KERNEL CHECK TRACE RANKS)

.PHONY: library tests examples dll
.DELETE_ON_ERROR:
.SECONDARY:
library: $(B)/devstream.o
tests: $(B)/conformance.exe
examples: $(EXAMPLES:%=$(B)/run/%.exe) $(B)/expect.exe
dll: $(B)/dll/use.exe $(if $(shell command -v clang),$(B)/dll/use_cpp.exe)

$(B)/devstream.o: src/devstream.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -O1 -g0 $(WARN) -Isrc $(DEPS) -c $< -o $@
$(B)/cmocka/lib/libcmocka.a:
	CC='$(CC)' tools/cmocka.sh $(B)/cmocka
$(B)/ptx/o%/once.ptx.h: tests/support/kernels/once.kernels.h
	@tests/support/kernels/compile.sh -O$* $< $(@D)
$(B)/tests/conformance/test_kernel_once_o0.o: $(B)/ptx/o0/once.ptx.h
$(B)/tests/conformance/test_kernel_once_o3.o: $(B)/ptx/o3/once.ptx.h
$(B)/tests/conformance/test_kernel_once_o3.o: private TEST += -O3
$(B)/tests/%.o: tests/%.c $(B)/cmocka/lib/libcmocka.a
	@mkdir -p $(@D)
	$(CC) $(TEST) $(DEPS) -c $< -o $@
$(B)/conformance.exe: $(CONFORMANCE) $(B)/devstream.o
	$(CC) $^ -o $@ -L$(B)/cmocka/lib -lcmocka $(LIBS)

# timespec_get is in newer C libraries of Windows only
$(B)/run/graph_while.exe $(B)/run/jacobi.exe $(B)/run/pipeline.exe: private LINKED += -include tests/ports/windows/timespec.h
$(B)/run/%.exe: examples/%.c $(B)/devstream.o
	@mkdir -p $(@D)
	$(CC) -std=c11 -O0 $(WARN) -Isrc $(LINKED) $(DEPS) $< $(B)/devstream.o -o $@ $(LIBS)
$(B)/expect.exe: tests/trace/expect.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O1 -Wall -Wextra -Werror -Isrc -Itests/support $(DEPS) $< -o $@ $(LIBS)

# The library as a DLL, and programs in C and C++ that link it.
$(B)/dll/devstream.dll: devstream.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -O1 -g0 $(WARN) -DDEVSTREAM_SHARED -I. $(DEPS) -shared $< -o $@ $(RUNTIME) -static
$(B)/dll/use.exe: tests/ports/windows/use.c $(B)/dll/devstream.dll
	$(CC) -std=c11 -O0 $(WARN) -I. $< $(B)/dll/devstream.dll -o $@ $(RUNTIME) -static
$(B)/dll/use_cpp.exe: tests/ports/windows/use.c $(B)/dll/devstream.dll
	clang --target=x86_64-w64-mingw32 -x c++ -std=c++11 -fno-exceptions -Wall -Wextra -Werror -I. -c $< -o $@.o
	$(GCC) $@.o $(B)/dll/devstream.dll -o $@ -static

-include $(wildcard $(B)/*.d $(B)/*/*.d $(B)/*/*/*.d)
